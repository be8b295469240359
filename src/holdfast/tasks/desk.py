"""Operations on a session's tasks for tools, people and clients: list, inspect, read, wait, kill.

A task's row is readable on every machine; its output, and the power to kill it, are on the machine where it runs.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Literal

import msgspec

from holdfast.commands.command import CommandKey, CommandStatus, KillReport, Stream
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandsError
from holdfast.commands.output import OutputChunk
from holdfast.commands.redaction import Redaction
from holdfast.events.ids import Key, Owner, TaskId
from holdfast.live.live import Changed, Live
from holdfast.store.clock import Clock
from holdfast.store.store import Store
from holdfast.store.tasks import Killer, TaskRow
from holdfast.tasks.endings import ending_of, notice_of
from holdfast.tasks.errors import TaskNotFound, TaskNotRunning, TaskUnreachable
from holdfast.tasks.prompts import looks_like_a_prompt

TAIL_BYTES: Final = 4096

GRACE_SECONDS: Final = 5.0
"""Time between SIGTERM and SIGKILL."""

LOOK_SECONDS: Final = 0.05
"""Poll interval for a row that another process is about to change."""

HOST_SILENT_MS: Final = 120_000
"""A machine without a heartbeat for this long does not watch its tasks."""

ShownStatus = Literal["running", "stalled", "unreachable", "completed", "failed", "killed", "lost"]

WaitReason = Literal["completed", "failed", "killed", "lost", "stalled", "idle", "timeout"]
"""`idle`: it runs and writes nothing, as a server does once it is up."""


class TaskKillReport(msgspec.Struct, frozen=True):
    """The result of killing a task: its row afterwards, and the report of which processes ended and which escaped."""

    row: TaskRow
    report: KillReport


class TaskDesk:
    """The operations on tasks, one object per runtime. `host` is the id of its commands folder."""

    def __init__(
        self, store: Store, commands: Commands, live: Live, clock: Clock, *, host: str, redaction: Redaction
    ) -> None:
        self.host = host
        self.redaction = redaction
        self._store = store
        self._commands = commands
        self._live = live
        self._clock = clock

    # Queries

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        """Returns the session's background tasks, in the order of their start."""
        return tuple(row for row in await self._store.tasks(key) if not row.foreground)

    async def commands(self, key: Key) -> tuple[TaskRow, ...]:
        """Returns the background tasks and the command that the turn waits for."""
        rows = await self._store.tasks(key)
        return tuple(row for row in rows if not row.foreground or row.status == "running")

    async def running(self, key: Key) -> tuple[TaskRow, ...]:
        """Returns all running commands, in the background or not."""
        return await self._store.running_tasks(key)

    async def all_tasks(self, owner: Owner) -> tuple[TaskRow, ...]:
        """Returns the tasks of all sessions of an owner, without commands that finished in the foreground."""
        rows = await self._store.owner_tasks(owner)
        return tuple(row for row in rows if not row.foreground or row.status == "running")

    async def find(self, key: Key, name: str) -> TaskRow:
        """Finds a task by its id, or by the name that the model gave it. Of several with that name, a running one wins,
        then one in the background, then the latest. Raises `TaskNotFound`."""
        row = await self._store.task(key, TaskId(name))
        if row is not None:
            return row
        named = [row for row in await self._store.tasks(key) if name and row.alias == name]
        if not named:
            raise TaskNotFound(name)
        return max(reversed(named), key=lambda row: (row.status == "running", not row.foreground))

    def shown_status(self, row: TaskRow) -> ShownStatus:
        if row.status != "running":
            return row.status
        if row.host != self.host and row.host_silent_ms > HOST_SILENT_MS:
            return "unreachable"
        return "stalled" if row.stalled else "running"

    def without_secrets(self, row: TaskRow) -> TaskRow:
        """Returns the row with known secrets redacted: the command and its description may contain some."""
        clean = self.redaction.text
        return msgspec.structs.replace(row, command=clean(row.command), description=clean(row.description))

    # Output

    async def read(self, row: TaskRow, offset: int, length: int, stream: Stream = "both") -> OutputChunk:
        """Returns raw bytes, secrets included: only for callers that may see them. Raises `TaskUnreachable`."""
        self._reach(row)
        return await self._commands.read(command_key(row), offset, length, stream)

    async def size(self, row: TaskRow, stream: Stream = "both") -> int:
        self._reach(row)
        return await self._commands.size(command_key(row), stream)

    async def status(self, row: TaskRow) -> CommandStatus | None:
        """Returns the command's current status on this machine."""
        self._reach(row)
        return await self._commands.status(command_key(row))

    async def follow(self, row: TaskRow, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """Yields the output from `offset` on, as it comes, until the task ends."""
        self._reach(row)
        async for chunk in self._commands.follow(command_key(row), offset):
            yield chunk

    async def tail(self, row: TaskRow, length: int = TAIL_BYTES) -> str:
        """Returns the end of the output without known secrets, at most `length` bytes; empty if the output is not on
        this machine or no longer kept."""
        read_bytes = 2 * length + 4 * self.redaction.longest  # The text that replaces a secret may be shorter.
        data = await self.last_bytes(row, read_bytes)
        shown = self.redaction.text if len(data) < read_bytes else self.redaction.end
        return shown(data.decode("utf-8", "replace")).encode()[-length:].decode("utf-8", "ignore")

    async def last_bytes(self, row: TaskRow, length: int = TAIL_BYTES) -> bytes:
        """Returns the last raw bytes, secrets included."""
        if row.host != self.host:
            return b""
        try:
            size = await self._commands.size(command_key(row))
            return (await self._commands.read(command_key(row), max(0, size - length), length)).data
        except (CommandsError, OSError):
            return b""

    # Waiting

    async def wait(self, row: TaskRow, seconds: float, idle_seconds: float) -> tuple[WaitReason, TaskRow]:
        """Waits until the task ends, seems stuck, writes nothing for a while, or the time is over. The task runs on in
        any case."""
        if row.status != "running":
            return row.status, row
        self._reach(row)
        deadline = asyncio.get_running_loop().time() + seconds
        patience = idle_seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            quiet_for = await self._wait_for_news(row, min(left, patience))
            now = await self.find(row.key, row.task_id)
            if now.status != "running":
                return now.status, now
            if now.stalled:
                return "stalled", now
            if quiet_for >= idle_seconds:
                stuck = looks_like_a_prompt(await self.last_bytes(row))
                return "stalled" if stuck else "idle", now
            if asyncio.get_running_loop().time() >= deadline:
                return "timeout", now
            patience = idle_seconds - max(0.0, quiet_for)
            if quiet_for < 0:  # The turn waits for this command too, and has not recorded its end yet.
                await self._clock.sleep(LOOK_SECONDS)

    async def _wait_for_news(self, row: TaskRow, seconds: float) -> float:
        """Waits for the end, at most `seconds`. Returns for how many seconds the task has been quiet, or -1 if it
        ended."""
        status = await self._commands.wait(command_key(row), max(0.0, seconds))
        if status.outcome is not None:
            await self.settle(row, status)
            return -1.0
        quiet_since = max(status.last_output_at, row.started_at / 1000)
        return self._clock.now_ms() / 1000 - quiet_since

    # Kills

    async def kill(self, key: Key, name: str, by: Killer, *, grace_seconds: float = GRACE_SECONDS) -> TaskKillReport:
        """Kills a task and every process that can be found of it. A crash after the kill is noted leaves it to the
        machine's task keeper; before that, nothing was done. For a task that has ended, kills its leftover processes;
        raises `TaskNotRunning` if there are none."""
        row = await self.find(key, name)
        if row.status != "running":
            return TaskKillReport(row, await self._kill_left_behind(row, name, grace_seconds))
        self._reach(row)
        await self._store.ask_kill(key, row.task_id, by)
        report = await self.carry_out(row, grace_seconds=grace_seconds)
        return TaskKillReport(await self.find(key, row.task_id), report)

    async def _kill_left_behind(self, row: TaskRow, name: str, grace_seconds: float) -> KillReport:
        """Kills leftover processes. The recorded outcome stays as it was. A crash before this leaves them running, to
        be killed again."""
        status = await self.status(row) if row.host == self.host else None
        outcome = status.outcome if status is not None else None
        if outcome is not None and (outcome.left_behind or outcome.escaped):
            report = await self._commands.kill(command_key(row), grace_seconds)
            if report.killed or report.escaped:
                return report
        raise TaskNotRunning(name, row.status)

    async def carry_out(self, row: TaskRow, *, grace_seconds: float = GRACE_SECONDS) -> KillReport:
        report = await self._commands.kill(command_key(row), grace_seconds)
        await self.settle(row, report.status)
        return report

    async def settle(self, row: TaskRow, status: CommandStatus) -> bool:
        """Records how a command ended and tells its session: once, whichever process does it and however often."""
        if status.outcome is None:
            return False
        now = await self._store.task(row.key, row.task_id)  # The kill request may have changed meanwhile.
        if now is None or (now.foreground and now.kill_asked != "stop"):
            return False  # Deleted; or the result of its tool call reports the end.
        ending = ending_of(status.outcome, status.record.limits.seconds)
        notice = notice_of(self.without_secrets(now), ending, await self.tail(now))
        if not await self._store.end_task(now, ending, notice, host=self.host):
            return False
        self._live.publish(row.key, Changed())
        return True

    def _reach(self, row: TaskRow) -> None:
        if row.host != self.host:
            raise TaskUnreachable(row.task_id)


def command_key(row: TaskRow) -> CommandKey:
    return CommandKey(row.key.owner, row.key.session, row.call_key, 1)


def task_id_of(key: CommandKey) -> TaskId:
    """The id of a command's task: the same for every attempt at a call, and never reused by another call."""
    return TaskId(f"t{key.name[:12]}")
