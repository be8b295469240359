"""The runtime is killed while commands run, in the foreground, flipped and in the background: all of them go on, and
each outcome arrives, once, with its true exit code and everything that was written."""

import asyncio
import os
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.embedded.session import Session
from tests.faults.processes import child_on
from tests.faults.world import bodies_of, comes_true, patience, runtime_on
from tests.tools.using import is_alive

pytestmark = pytest.mark.anyio

LINES = 500

B = TypeVar("B", bound=Body)


def command(name: str, code: int) -> str:
    """Notes its pid, prints half of its lines, waits at a pipe, prints the other half."""
    return (
        f"echo $$ >> {name}.pid; for i in $(seq 1 {LINES}); do echo {name} $i; done; cat {name}.go > /dev/null; "
        f"for i in $(seq {LINES + 1} {2 * LINES}); do echo {name} $i; done; exit {code}"
    )


def lines(name: str) -> str:
    return "".join(f"{name} {number}\n" for number in range(1, 2 * LINES + 1))


CODES = {"waited": 3, "flipped": 4, "behind": 0}

SCRIPT = Script(
    (
        Rule((Reply(text="I see."),), "task-notification"),
        Rule(
            (
                Reply(
                    tool_calls=(
                        ScriptedCall("exec", {"command": command("waited", 3), "timeout": 300}),
                        ScriptedCall("exec", {"command": command("flipped", 4), "timeout": 1}),
                        ScriptedCall("exec", {"command": command("behind", 0), "run_in_background": True}),
                    )
                ),
                Reply(text="All three were started."),
            ),
            "Go",
        ),
    )
)


async def test_commands_outlive_a_killed_runtime_and_each_outcome_arrives_once(tmp_path: Path) -> None:
    database, work = tmp_path / "holdfast.db", tmp_path / "work"
    work.mkdir()
    for name in CODES:
        os.mkfifo(work / f"{name}.go")
    async with runtime_on(database, work=False) as maker:
        await maker.session("s", working_directory=str(work), allow=("shell",))
    async with child_on(database, script=SCRIPT) as doomed:
        await doomed.ask("send", session="s", text="Go", message_id="m")
        async with runtime_on(database, work=False) as looking, patience():
            await _until(looking.open("s"), TaskStarted, 2)
        await comes_true(lambda: all(_pid(work, name) for name in CODES))
        pids = {name: _pid(work, name) for name in CODES}
        await doomed.kill()
    assert all(is_alive(pid) for pid in pids.values())
    await asyncio.to_thread((work / "behind.go").write_text, "go\n")  # It ends while no runtime is there.
    async with runtime_on(database, ScriptedModel(SCRIPT)) as heir, patience():
        session = heir.open("s")
        await asyncio.to_thread((work / "flipped.go").write_text, "go\n")
        await asyncio.to_thread((work / "waited.go").write_text, "go\n")
        result = await session.result_of("m")
        assert result.reason == "completed"
        await _told(session, 2)
        assert {name: _pid(work, name) for name in CODES} == pids, "the same processes, each started once"
        await _everything_is_told_once(session)


async def _told(session: Session, times: int) -> list[TaskNotified]:
    return await _until(session, TaskNotified, times)


async def _until(session: Session, kind: type[B], times: int) -> list[B]:
    """Wait until the log has so many of them. It may be another process that writes it."""
    found: list[B] = []
    async for reading in session.events():
        if isinstance(reading, Event) and isinstance(reading.body, kind):
            found.append(reading.body)
            if len(found) == times:
                break
    return found


async def _everything_is_told_once(session: Session) -> None:
    told = {notified.notice.task_id: notified.notice for notified in await bodies_of(session, TaskNotified)}
    rows = {row.id: row for row in await session.tasks()}
    assert len(await bodies_of(session, TaskNotified)) == len(told) == len(rows) == 2
    for task_id, row in rows.items():
        name = "behind" if "behind" in row.command else "flipped"
        assert (row.exit_code, told[task_id].exit_code) == (CODES[name], CODES[name])
        assert row.status == told[task_id].kind == ("completed" if name == "behind" else "failed")
        assert told[task_id].output_tail.endswith(f"{name} {2 * LINES}\n")
        output = await session.task_output(task_id, 0, 1_000_000)
        assert output.text == lines(name), "every line, once, in order"
        assert await asyncio.to_thread(Path(row.output_file).read_text) == lines(name)
    results = [done for done in await bodies_of(session, ToolCompleted) if '"exit_code"' in done.content]
    assert len(results) == 1, "what was waited for is the result of its call, and no news"
    waited = msgspec.json.decode(results[0].content)
    assert (waited["exit_code"], waited["stdout"]) == (CODES["waited"], lines("waited"))
    attempts = [body.attempt for body in await bodies_of(session, ToolAttempted)]
    assert sorted(attempts) == [1, 1, 1, 2], "only the call that was waited for was tried again"


def _pid(work: Path, name: str) -> int:
    """0: not started. Fails if it was started twice."""
    found = (work / f"{name}.pid").read_text().split() if (work / f"{name}.pid").exists() else []
    assert len(found) <= 1
    return int(found[0]) if found else 0


async def test_a_flipped_command_is_the_same_process_and_loses_no_line(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    slow = "echo $$ > before; for i in $(seq 1 30); do echo line $i; sleep 0.1; done; echo $$ > after"
    call = Reply(tool_calls=(ScriptedCall("exec", {"command": slow, "timeout": 1}),))
    script = Script((Rule((call, Reply(text="{last_tool_result}")), "Go"), Rule((Reply(text="I see."),))))
    async with runtime_on(tmp_path / "holdfast.db", ScriptedModel(script)) as runtime, patience():
        session = await runtime.session("s", working_directory=str(work), allow=("shell",))
        flipped = msgspec.json.decode((await session.run("Go")).text)
        assert flipped["status"] == "auto_backgrounded"
        told = await _told(session, 1)
        assert told[0].notice.task_id == flipped["task_id"]
        output = await session.task_output(flipped["task_id"])
        assert output.text == "".join(f"line {number}\n" for number in range(1, 31))
    assert (work / "before").read_text() == (work / "after").read_text()
