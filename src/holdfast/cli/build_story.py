"""`holdfast story build`: a slow build, told as it happens: it moves to the background, outlives a `kill -9` of the
runtime, and wakes its session when it ends.

Like the other story, it checks each of its claims and fails if one does not hold.
"""

import asyncio
import tempfile
from asyncio.subprocess import Process
from pathlib import Path

from holdfast.app import Runtime
from holdfast.cli.crash_story import Teller, text_of, within_time
from holdfast.cli.transcript import WOKEN
from holdfast.commands.command import CommandStatus
from holdfast.events.body import Body
from holdfast.events.message import AssistantMessage
from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.events.tool import ToolAttempted
from holdfast.events.turn import TurnStarted
from holdfast.models.demo import BUILD_STEPS
from holdfast.store.tasks import TaskRow

REPORTED = "wakes its session, once"
"""The end of the demo model's report."""


async def tell() -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-story-") as folder:
        teller = BuildTeller(Path(folder))
        try:
            await teller.build_outlives_its_process()
        finally:
            await teller.end_all()
            await teller.end_tasks()
        teller.say("good", "✓ One build, one kill -9, one report. Try it: holdfast chat, and type “build something”")
    return 0


class BuildTeller(Teller):
    """Checks the task from outside: its row, and the status of its process on this machine."""

    async def build_outlives_its_process(self) -> None:
        first = await self._chat("build something", "--allow", "shell")
        await self._said(first, r"goes on in the background, task t\w+")
        row, status = await self._task()
        self._hold(row.status == "running" and not row.foreground, "the build continues, and no turn waits for it")
        pid = self._pid(status)
        self.say("text", f"It took longer than the model would wait: task {row.task_id}, process {pid}, runs on.")
        await self._kill(first, "The build is running.")
        await self._see_it_run_on(row, pid)
        second = await self._come_back(row, pid)
        said = await self._said(second, REPORTED)
        self._hold(WOKEN in said, "the report came without a message")
        await self._see_the_end(pid)
        assert second.stdin is not None
        second.stdin.close()
        await self._said(second, None)

    async def _see_it_run_on(self, row: TaskRow, pid: int) -> None:
        """Check that the command runs while no process of the runtime does, only the supervisor."""
        async with self._runtime() as runtime, within_time():
            begin = await runtime.task_operations.desk.size(row)
            written = b""
            async for chunk in runtime.task_operations.follow(row.key, row.task_id, begin):
                written = chunk.data
                break
            status = await runtime.task_operations.desk.status(row)
        self._hold(status is not None and self._pid(status) == pid, "it is the same process")
        if written:
            line = written.decode().splitlines()[-1]
            self.say("text", f"The process that started it is dead. Process {pid} has written since: {line}")
        else:
            self.say("text", f"The process that started it is dead. Process {pid} has ended since, by itself.")

    async def _come_back(self, row: TaskRow, pid: int) -> Process:
        self.say("text", "The same command again, in the same folder: holdfast chat")
        async with self._runtime() as runtime, within_time():
            before = (await runtime.task_operations.find(row.key, row.task_id)).host_silent_ms
            second = await self._start("chat", "--dir", str(self._work), "--model", "demo", stays=True)
            while (now := await runtime.task_operations.find(row.key, row.task_id)).status == "running":
                if now.host_silent_ms < before:
                    break
                await asyncio.sleep(0.02)
            status = await runtime.task_operations.desk.status(row)
        self._hold(status is not None and self._pid(status) == pid, "the same process is looked after again")
        found = "is running" if now.status == "running" else f"has {now.status}"
        self.say("text", f"It has taken over the task, and finds that process {pid} {found}.")
        return second

    async def _see_the_end(self, pid: int) -> None:
        row, _ = await self._task()
        bodies = [event.body for event in await self._events()]
        (notice,) = [body.notice for body in bodies if isinstance(body, TaskNotified)]
        async with self._runtime() as runtime:
            output = (await runtime.task_operations.read(row.key, row.task_id, 0, 1_000_000)).data.decode()
        steps = [f"step {step} of {BUILD_STEPS}" for step in range(1, BUILD_STEPS + 1)]
        last = f"built {BUILD_STEPS} steps"
        self._hold(output.splitlines() == [f"building, as process {pid}", *steps, last], "it ran once, from end to end")
        self._hold((row.status, row.exit_code, notice.exit_code) == ("completed", 0, 0), "its true exit code came")
        self._hold(_count(bodies, ToolAttempted) == 1 and _count(bodies, TaskStarted) == 1, "it was started once")
        woken = [body for body in bodies if isinstance(body, TurnStarted) and body.woken]
        self._hold(len(woken) == 1, "its end woke the session, once")
        report = _last_answer(bodies)
        self._hold("exit code 0" in report and last in report, "the model reports its exit code and its last line")
        self.say(
            "text", f"It ended after {notice.duration_ms / 1000:.1f} s, and started a turn itself. The model says:"
        )
        self.say("text", f"  {report.partition(chr(10))[0]}")

    async def _task(self) -> tuple[TaskRow, CommandStatus]:
        async with self._runtime() as runtime:
            (row,) = await runtime.task_operations.of_owner(runtime.owner)
            status = await runtime.task_operations.desk.status(row)
        self._hold(status is not None, "the machine knows the command")
        assert status is not None
        return row, status

    def _pid(self, status: CommandStatus) -> int:
        self._hold(status.runner is not None, "the command was started")
        assert status.runner is not None
        return status.runner.pid

    async def end_tasks(self) -> None:
        """Kill the build of a story that failed."""
        async with self._runtime() as runtime:
            for row in await runtime.task_operations.of_owner(runtime.owner):
                await self._end_task(runtime, row)

    async def _end_task(self, runtime: Runtime, row: TaskRow) -> None:
        if (await runtime.task_operations.refresh(row)).status == "running":
            await runtime.task_operations.kill(row.key, row.task_id)


def _count(bodies: list[Body], kind: type[Body]) -> int:
    return sum(isinstance(body, kind) for body in bodies)


def _last_answer(bodies: list[Body]) -> str:
    return text_of([body for body in bodies if isinstance(body, AssistantMessage)][-1])
