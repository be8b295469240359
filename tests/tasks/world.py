"""Machines with real commands on them at one database, and somebody who looks after their tasks.

A command that reads the named pipe `go` waits there until the test lets it go on.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.commands.command import Limits, Spec
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.commands.service import SupervisorSettings
from holdfast.events.ids import ToolCallId, random_id
from holdfast.events.inbox import TaskNews
from holdfast.events.task import TaskNotice
from holdfast.live.local import LocalLive
from holdfast.store.clock import Clock, SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Lease
from holdfast.store.tasks import TaskChange, TaskRow
from holdfast.tasks.desk import TaskDesk, command_key
from holdfast.tasks.keeper import KeeperTimings, TaskKeeper
from holdfast.tasks.shell import Shell, ShellArguments
from holdfast.testing.store_conformance.tasks import commit, in_front
from holdfast.testing.store_conformance.words import KEY

PATIENCE_SECONDS = 30.0
"""How long a test waits for something that must come. No test that passes waits so long."""

SETTINGS = SupervisorSettings(idle_seconds=5.0)

QUICK = KeeperTimings(look_every_seconds=0.02)
"""Looks often; all that takes long in life takes as long as ever."""

SECRET = "a secret that nobody may see"


class Machine:
    """A folder of commands, as one process of that machine sees it."""

    def __init__(self, store: SqliteStore, commands: Commands, root: Path, host: str, clock: Clock) -> None:
        self.store = store
        self.commands = commands
        self.root = root
        self.host = host
        self.clock = clock
        self.live = LocalLive()
        self.desk = TaskDesk(store, commands, self.live, clock, host=host, redaction=Redaction([SECRET]))
        self.shell = Shell(commands, self.desk, isolation=Unconfined(), limits=Limits())

    def keeper(self, care: KeeperTimings = QUICK) -> TaskKeeper:
        return TaskKeeper(self.store, self.commands, self.desk, self.live, self.clock, care)

    def row(self, command: str, directory: Path, alias: str = "") -> TaskRow:
        # What a kill looks for is marked with its call: tests that run at the same time must not find each other's.
        call = ToolCallId(random_id())
        words = ShellArguments(command=command, directory=str(directory), alias=alias)
        return self.shell.row(KEY, call, f"m:{call}", words, self.clock.now_ms())

    async def start(self, row: TaskRow, limits: Limits | None = None) -> None:
        await self.commands.start(
            command_key(row), Spec(command=row.command, directory=row.directory, limits=limits or Limits())
        )

    async def wait_for(self, *commands: str, directory: Path) -> tuple[Lease, list[TaskRow]]:
        """A session whose turn waits for these commands."""
        rows = [self.row(command, directory) for command in commands]
        lease = await in_front(self.store, *rows)
        for row in rows:
            await self.start(row)
        return lease, rows

    async def begin(
        self, *commands: str, directory: Path, limits: Limits | None = None, alias: str = ""
    ) -> list[TaskRow]:
        """An idle session with these tasks."""
        rows = [self.row(command, directory, alias) for command in commands]
        lease = await in_front(self.store, *rows)
        for row in rows:
            await self.start(row, limits)
        changes = tuple(TaskChange(task_id=row.task_id, goes_on=True) for row in rows)
        await commit(self.store, lease, changes_tasks=changes, status="idle")
        session = await self.store.row(KEY)
        assert session is not None
        assert await self.store.release(lease, seen_tail=session.inbox_tail, how="done")
        return [msgspec.structs.replace(row, foreground=False) for row in rows]

    async def now(self, row: TaskRow) -> TaskRow:
        found = await self.store.task(row.key, row.task_id)
        assert found is not None
        return found

    async def has_ended(self, row: TaskRow) -> TaskRow:
        """Its row, once that says so."""
        await until(lambda: self._is_over(row))
        return await self.now(row)

    async def _is_over(self, row: TaskRow) -> bool:
        return (await self.now(row)).status != "running"

    async def news(self) -> list[TaskNotice]:
        items = [item.item for item in await self.store.waiting_items(KEY)]
        return [item.notice for item in items if isinstance(item, TaskNews)]

    async def is_told(self, count: int) -> list[TaskNotice]:
        """All the news, once there is so much of it."""

        async def is_there() -> bool:
            return len(await self.news()) >= count

        await until(is_there)
        return await self.news()

    async def pid_of(self, row: TaskRow) -> int:
        status = await self.commands.status(command_key(row))
        assert status is not None
        assert status.runner is not None
        return status.runner.pid


class Machines:
    """Opens them, and leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[Machine] = []

    @property
    def database(self) -> Path:
        return self._folder / "holdfast.db"

    async def open(self, name: str = "here", *, clock: Clock | None = None) -> Machine:
        """Another process on the machine of that name."""
        clock = clock or SystemClock()
        root = self._folder / f"commands-{name}"
        commands = Commands(root, settings=SETTINGS)
        store = await SqliteStore.open(self.database, node=name, clock=clock)
        machine = Machine(store, commands, root, await commands.folder_id(), clock)
        self._opened.append(machine)
        return machine

    def age_tasks(self, seconds: int) -> None:
        """Makes the database believe that all tasks were opened and ended, and machines heard of, so much earlier."""
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute(
                "UPDATE task SET opened_at = opened_at - ?1, end_noted_at = end_noted_at - ?1", (seconds * 1000,)
            )
            db.execute("UPDATE task_host SET seen_at = seen_at - ?", (seconds * 1000,))

    async def close(self) -> None:
        for machine in self._opened:
            for status in await machine.commands.listed():
                await machine.commands.kill(status.key, 0)
            await machine.commands.close()
            await machine.store.close()
        for root in {machine.root for machine in self._opened}:
            await end_supervisor(root)


async def end_supervisor(root: Path) -> None:
    if not (root / "supervisor.lock").exists():
        return
    pid = int((root / "supervisor.lock").read_text())
    if is_running(pid):
        os.kill(pid, signal.SIGTERM)
        await until(lambda: gone(pid))


def pipe(folder: Path, name: str = "go") -> Path:
    os.mkfifo(folder / name)
    return folder / name


async def let_go(where: Path, text: str = "") -> None:
    """Write to a pipe, once somebody reads from it."""

    async def is_written() -> bool:
        try:
            descriptor = os.open(where, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return True

    await until(is_written)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what nothing announces."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def gone(pid: int) -> bool:
    return not is_running(pid)
