"""Commands that do what they should not: a crowd of grandchildren, some that leave, one that is deaf, one that fills
what it was given, one that prints a gigabyte. Ceilings hold, kills work or say what escaped, and all the while the same
runtime answers whoever talks to it."""

import asyncio
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.event import Event
from holdfast.events.task import TaskNotified
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.protocol.task import TaskView
from holdfast.server.embedded.session import Session
from tests.faults.world import comes_true, runtime_on
from tests.tools.using import is_alive

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

GIGABYTE = 1 << 30
CEILING = 1 << 20
QUOTA = 4 << 20
FAMILY = 60

COMMANDS = {
    "crowd": f"for i in $(seq 1 {FAMILY}); do (sh -c 'echo $$ >> crowd.pids; sleep 300') & done; wait",
    "leavers": "for i in 1 2 3; do setsid sh -c 'echo $$ >> leavers.pids; sleep 300' & done; wait",
    "deaf": "trap '' TERM INT HUP; echo $$ >> deaf.pids; while true; do sleep 300; done",
    "filler": f"echo $$ >> filler.pids; head -c {4 * QUOTA} /dev/zero > large; echo the rest of it",
    "printer": f"echo $$ >> printer.pids; head -c {GIGABYTE} /dev/zero | tr '\\0' x",
}

SCRIPT = Script(
    (
        *(
            Rule(
                (
                    Reply(tool_calls=(ScriptedCall("exec", {"command": command, "run_in_background": True}),)),
                    Reply(text="Started."),
                ),
                f"run the {name}",
            )
            for name, command in COMMANDS.items()
        ),
        Rule((Reply(text="pong"),), "ping"),
        Rule((Reply(text="I see."),)),
    )
)


class World:
    def __init__(self, runtime: Runtime, work: Path) -> None:
        self.runtime = runtime
        self.work = work
        self.pings = 0

    async def run(self, name: str) -> Session:
        session = await self.runtime.session(name, working_directory=str(self.work), allow=("shell",))
        assert (await session.run(f"run the {name}")).text == "Started."
        return session

    async def keep_pinging(self) -> None:
        """Somebody else talks to the same runtime all the while, and is answered each time."""
        session = await self.runtime.session("somebody-else")
        while True:
            assert (await session.run(f"ping {self.pings}")).text == "pong"
            self.pings += 1

    def pids(self, name: str) -> list[int]:
        file = self.work / f"{name}.pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def until_there_are(self, name: str, count: int) -> list[int]:
        await comes_true(lambda: len(self.pids(name)) >= count)
        return self.pids(name)


async def test_hard_commands_are_bounded_and_killed_while_the_runtime_answers(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    runtime = runtime_on(
        tmp_path / "holdfast.db",
        ScriptedModel(SCRIPT),
        command_output_bytes=CEILING,
        command_file_bytes=QUOTA,
    )
    async with runtime, asyncio.timeout(300):
        here = World(runtime, work)
        pinging = asyncio.create_task(here.keep_pinging())
        sessions = {name: await here.run(name) for name in COMMANDS}
        for name, count in (("crowd", FAMILY), ("leavers", 3), ("deaf", 1)):
            await _is_killed_whole(here, sessions[name], name, count)
        filled = await _ended(sessions["filler"])
        assert (work / "large").stat().st_size == QUOTA, "no file is larger than it was given"
        output = await sessions["filler"].task_output(filled.id)
        assert output.text.endswith("the rest of it\n"), "it met its ceiling and went on as it liked"
        await _printed_a_gigabyte(sessions["printer"])
        assert not pinging.done()
        before = here.pings
        await comes_true(lambda: here.pings >= before + 3)
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)
    assert here.pings >= 10


async def _is_killed_whole(here: World, session: Session, name: str, count: int) -> None:
    pids = await here.until_there_are(name, count)
    (row,) = await session.tasks()
    killed = await session.kill_task(row.id)
    assert killed.task.status == "killed"
    assert {one.pid for one in killed.escaped_processes} == {pid for pid in pids if is_alive(pid)} == set()


async def _printed_a_gigabyte(session: Session) -> None:
    row = await _ended(session)
    assert (row.status, row.exit_code) == ("completed", 0)
    head = await session.task_output(row.id, 0, 100)
    tail = await session.task_output(row.id, GIGABYTE - 100, 200)
    assert (head.text, tail.text) == ("x" * 100, "x" * 100), "the beginning and the end are kept"
    folder = Path(row.output_file).parent
    kept = await asyncio.to_thread(lambda: sum(file.stat().st_size for file in folder.glob("output*")))
    assert kept < 2 * CEILING


async def _ended(session: Session) -> TaskView:
    """Its only task, once the model is told how that ended."""
    async for reading in session.events():
        if isinstance(reading, Event) and isinstance(reading.body, TaskNotified):
            break
    (row,) = await session.tasks()
    return row
