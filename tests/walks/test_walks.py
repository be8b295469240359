"""The pages that walk through the code file by file are true: what they name exists, and real turns take that way.

A file is on a walk (in bold on its page) if a function in it decides what becomes of the prompt, writes, or hands over
to a function that its caller does not name. All other files that run are looked up, not walked through.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.http.world import Client, Model, Place, patience
from tests.wire.copilot import harness as copilot

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
TRACER = Path(__file__).parent / "tracer"

Call = tuple[str, str]
"""A file below the package, and the function that was entered."""

PROMPT: tuple[Call, ...] = (
    ("server/http/gate.py", "AccessGate.__call__"),
    ("server/http/routes/messages.py", "send"),
    ("server/operations/messages.py", "MessageVerbs.send"),
    ("server/operations/session_access.py", "SessionAccess._put"),
    ("store/sqlite/store.py", "SqliteStore.put"),
    ("store/sqlite/writer.py", "Writer._write"),
    ("store/sqlite/puts.py", "put"),
    ("store/admission.py", "admit"),
    ("store/sqlite/leases.py", "Leases.claim"),
    ("store/sqlite/order.py", "Order.next"),
    ("store/claim_order.py", "line_up"),
    ("workers/claimer.py", "Claimer._start_early"),
    ("workers/session_run.py", "SessionRunner.run"),
    ("turns/load.py", "load_claimed"),
    ("turns/held_session.py", "HeldSession.__init__"),
    ("turns/loop.py", "TurnLoop._run_once"),
    ("session/decide.py", "decide"),
    ("session/turn_start.py", "start_turn"),
    ("session/fold.py", "apply"),
    ("session/model_step.py", "call_model"),
    ("turns/model_call.py", "call_model"),
    ("models/http_model.py", "HttpModel.stream"),
    ("turns/held_session.py", "HeldSession.commit_segments"),
    ("store/sqlite/units.py", "Units._append_segments"),
    ("live/local.py", "LocalSubscription.offer"),
    ("server/reader.py", "Reader._from_hint"),
    ("server/http/routes/events.py", "_frames_of"),
)
"""The walk in docs/ARCHITECTURE.md."""

APPROVAL: tuple[Call, ...] = (
    ("session/tool_step.py", "run_tools"),
    ("session/permissions.py", "judge"),
    ("turns/held_session.py", "HeldSession.commit"),
    ("store/sqlite/units.py", "Units.run"),
    ("live/local.py", "LocalLive.publish"),
    ("server/reader.py", "Reader._from_hint"),
    ("server/copilot/hub.py", "Hub._event"),
    ("server/copilot/peer.py", "Peer.notify"),
    ("server/copilot/peer.py", "Peer._take_call"),
    ("server/copilot/methods/permissions.py", "handle_permission"),
    ("server/operations/requests.py", "RequestVerbs.decide_permission"),
    ("server/operations/session_access.py", "SessionAccess._put"),
    ("store/sqlite/store.py", "SqliteStore.put"),
    ("store/sqlite/writer.py", "Writer._write"),
    ("store/sqlite/puts.py", "put"),
    ("store/admission.py", "admit"),
    ("turns/loop.py", "TurnLoop._run_once"),
    ("session/decide.py", "decide"),
    ("session/interventions.py", "intervene"),
    ("turns/tool_call.py", "run_tool"),
)
"""The walk in docs/copilot.md."""

COMMAND_STARTS: tuple[Call, ...] = (
    ("turns/tool_call.py", "run_tool"),
    ("turns/held_session.py", "HeldSession.commit"),
    ("store/sqlite/units.py", "Units.run"),
    ("store/sqlite/task_rows.py", "write_unit"),
    ("tools/exec.py", "_exec"),
    ("tools/shell.py", "CallCommand.carry_out"),
    ("commands/commands.py", "Commands.start"),
    ("commands/supervisor_client.py", "SupervisorClient.request"),
)
IN_THE_SUPERVISOR = ("commands/supervisor.py", "commands/service.py", "commands/execution.py")
"""Files of another process, which gets none of our environment and is not traced."""
COMMAND_ENDS: tuple[Call, ...] = (
    ("tasks/keeper.py", "TaskKeeper._watch"),
    ("tasks/desk.py", "TaskDesk.settle"),
    ("store/sqlite/task_rows.py", "end"),
    ("session/turn_start.py", "wake"),
)
"""The walk in docs/tasks.md, before and after the restart."""


# The pages


def section(page: str, begin: str, end: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(begin)[2].partition(end)[0]


WALKS = {
    "ARCHITECTURE.md": section("ARCHITECTURE.md", "## The life of a prompt", "## After a crash"),
    "copilot.md": section("copilot.md", "## How it is built", "\n## "),
    "tasks.md": section("tasks.md", "## How it is built", "\n## "),
}


def walked(page: str) -> list[str]:
    """The files in bold, in the order of the page."""
    return re.findall(r"\*\*`([\w/]+\.py)`\*\*", WALKS[page])


def files(calls: Iterable[Call]) -> list[str]:
    return list(dict.fromkeys(file for file, _ in calls))


@pytest.mark.parametrize("page", WALKS)
def test_every_file_that_a_walk_names_exists(page: str) -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", WALKS[page]))
    # A file beside the one before it is named without its folder.
    paths = {path.relative_to(PACKAGE).as_posix() + "/" * path.is_dir() for path in PACKAGE.rglob("*")}
    found = {name for name in named if any(f"/{path}".endswith(f"/{name}") for path in paths)}
    assert {name for name in named - found if not (ROOT / name).exists()} == set()
    assert [name for name in walked(page) if name not in paths] == []


def test_the_pages_name_the_files_of_the_walks_in_their_order() -> None:
    assert walked("ARCHITECTURE.md") == files(PROMPT)
    assert walked("copilot.md") == files(APPROVAL)
    started = [*files(COMMAND_STARTS), *IN_THE_SUPERVISOR]
    assert walked("tasks.md") == [*started, *(file for file in files(COMMAND_ENDS) if file not in started)]


# The turns


def environ(traces: Path) -> dict[str, str]:
    traces.mkdir()
    return {"WALK_TRACES": str(traces), "PYTHONPATH": os.pathsep.join(map(str, (TRACER, ROOT / "src", ROOT)))}


def calls_of(traces: Path, pid: int) -> list[Call]:
    lines = (traces / str(pid)).read_text(encoding="utf-8").splitlines()
    return [(file, function) for file, _, function in (line.partition(" ") for line in lines)]


def missing(walk: Iterable[Call], calls: Iterable[Call]) -> Call | None:
    """The first step of the walk that the calls do not have after the steps before it."""
    left = iter(calls)
    return next((step for step in walk if step not in left), None)


@asynccontextmanager
async def serving(place: Place) -> AsyncIterator[tuple[Client, int]]:
    async with place.serve() as server, server.client() as client:
        yield client, server.process.pid
        await server.end()


async def until_logged(client: Client, session: str, kind: str) -> None:
    async with client.follow(session) as frames, patience():
        async for frame in frames:
            if frame.kind == "event" and frame.data["type"] == kind:
                return


async def test_a_prompt_over_http_takes_the_way_that_the_page_describes(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    async with Model() as model, serving(Place(tmp_path, model, **environ(traces))) as (client, pid):
        session = await client.make()
        async with client.follow(session) as frames, patience():
            assert (await anext(frames)).data["type"] == "session.start"
            model.hold(piece=1)
            (await client.post(f"/v1/sessions/{session}/messages", json={"text": "good morning"})).raise_for_status()
            await model.until_held()
            async for frame in frames:
                if frame.kind == "delta":
                    model.release()
                if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                    break
    assert missing(PROMPT, calls_of(traces, pid)) is None


async def test_a_copilot_approval_takes_the_way_that_the_page_describes(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    async with copilot.Model() as model:
        home = copilot.Home(tmp_path, model)
        model.on("Write", copilot.calls("create", path="new.txt", file_text="new"), copilot.says("Written."))
        async with home.serve(**environ(traces)) as server, copilot.connected(server.client()) as client:
            session = await client.create_session(**copilot.approving())
            await copilot.reply_to(session, "Write")
    assert missing(APPROVAL, calls_of(traces, server.pid)) is None


async def test_a_background_command_takes_the_way_that_the_page_describes(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    async with Model() as model:
        place = Place(tmp_path, model, **environ(traces))
        os.mkfifo(place.work / "pipe")
        async with place.serve() as server, server.client() as client:
            session = await client.make(allow=["shell"])
            await client.say(session, "start it")
            await server.end(9)
        assert missing(COMMAND_STARTS, calls_of(traces, server.process.pid)) is None
        async with serving(place) as (client, pid):
            await asyncio.to_thread((place.work / "pipe").write_text, "go\n")
            await until_logged(client, session, "holdfast.task_notified")
    assert missing(COMMAND_ENDS, calls_of(traces, pid)) is None
