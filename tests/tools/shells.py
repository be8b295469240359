"""A session that can run commands: what a turn gives a tool that runs one, and what it writes before and after."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.commands.command import CommandStatus, Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Isolation, Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.commands.service import SupervisorSettings
from holdfast.events.ids import Key, Owner, SessionId, TaskId, ToolCallId, random_id
from holdfast.live.local import LocalLive
from holdfast.server.operations import Operations, SessionOptions
from holdfast.session.bounds import Bounds
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, Lease, Unit
from holdfast.store.tasks import TaskChange, TaskRow
from holdfast.tasks.desk import TaskDesk, command_key
from holdfast.tasks.shell import Shell
from holdfast.tools.tool import Tool, ToolContext, ToolResult
from tests.faults.world import comes_true, patience
from tests.tools.using import outputs

SECRET = 'a "secret" \\ value'
"""JSON writes it otherwise."""

SETTINGS = SupervisorSettings(idle_seconds=5.0)


class Session:
    """One session of a store, held here."""

    def __init__(self, store: SqliteStore, lease: Lease, shell: Shell) -> None:
        self.store = store
        self.key = lease.key
        self.shell = shell
        self.shown: list[str] = []
        """The progress that people saw while something ran."""
        self.to_background = asyncio.Event()
        self.is_interrupted = True
        """The cause that a cancelled tool gets: the turn was stopped, or only this process releases the session."""
        self.max_running_tasks = 20
        self.lease_seconds_left = math.inf
        self._fence = lease.fence
        self._numbers = count(1)

    def new_call(self) -> ToolCallId:
        return ToolCallId(f"call-{next(self._numbers)}")

    def context(
        self, tool: Tool, directory: Path | None, arguments: Any, call: ToolCallId, attempt: int = 1
    ) -> ToolContext:
        row = self._row(tool, directory, arguments, call)
        return ToolContext(
            session_id=self.key.session,
            tool_call_id=call,
            key=f"message:{call}",
            attempt=attempt,
            working_directory=directory,
            report=self.shown.append,
            read_output=outputs,
            permitted=tool.asks(arguments, directory),
            owner=self.key.owner,
            shell=self.shell,
            command=row,
            to_background=self.to_background,
            max_running_tasks=self.max_running_tasks,
            is_interrupted=lambda: self.is_interrupted,
            lease_seconds_left=lambda: self.lease_seconds_left,
        )

    def _row(self, tool: Tool, directory: Path | None, arguments: Any, call: ToolCallId) -> TaskRow | None:
        if tool.shell_arguments is None:
            return None
        shell_arguments = tool.shell_arguments(arguments, directory)
        return self.shell.row(self.key, call, f"message:{call}", shell_arguments, SystemClock().now_ms())

    async def attempted(self, tool: Tool, directory: Path | None, call: ToolCallId, **arguments: Any) -> None:
        """An attempt that came no further than to its row."""
        row = self._row(tool, directory, tool.parse(json.dumps(arguments)), call)
        assert row is not None
        await self._commit(opens_tasks=(row,))

    async def outcome(
        self, tool: Tool, directory: Path | None, call: ToolCallId | None = None, attempt: int = 1, **arguments: Any
    ) -> ToolResult:
        """Make a call as a turn does: the row before it, and what became of it behind it."""
        parsed = tool.parse(json.dumps(arguments))
        context = self.context(tool, directory, parsed, call or self.new_call(), attempt)
        if context.command is not None:
            await self._commit(opens_tasks=(context.command,))
        async with patience():
            given = await tool.run(parsed, context)
        result = given if isinstance(given, ToolResult) else ToolResult(content=_text(given))
        if context.command is not None:
            goes_on = bool(result.went_on)
            change = TaskChange(task_id=context.command.task_id, goes_on=goes_on, ending=result.ending)
            await self._commit(changes_tasks=(change,))
        return result

    async def use(self, tool: Tool, directory: Path | None, **arguments: Any) -> str:
        """The result as the model sees it."""
        return (await self.outcome(tool, directory, **arguments)).content

    async def told(self, tool: Tool, directory: Path | None, **arguments: Any) -> dict[str, Any]:
        """The same, of a tool that says it as JSON."""
        return decoded(await self.use(tool, directory, **arguments))

    async def _commit(self, **what: Any) -> None:
        assert isinstance(await self.store.commit(Unit(key=self.key, fence=self._fence, **what)), Committed)

    # What became of it

    async def row(self, name: str) -> TaskRow:
        return await self.shell.desk.find(self.key, name)

    async def rows(self) -> tuple[TaskRow, ...]:
        return await self.store.tasks(self.key)

    async def status(self, name: str) -> CommandStatus:
        found = await self.shell.desk.status(await self.row(name))
        assert found is not None
        return found

    async def ended(self, name: str) -> CommandStatus:
        """Wait until a command has ended."""
        async with patience():
            return await self.shell.commands.wait(command_key(await self.row(name)))

    async def settled(self, name: str) -> TaskRow:
        """Wait until a command has ended, and note it, as its keeper does."""
        status = await self.ended(name)
        await self.shell.desk.settle(await self.row(name), status)
        return await self.row(name)

    async def output(self, name: str) -> bytes:
        row = await self.row(name)
        return (await self.shell.desk.read(row, 0, 1 << 30)).data

    async def news(self) -> list[Any]:
        return [item.item for item in await self.store.waiting_items(self.key)]


def decoded(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def _text(given: object) -> str:
    return given if isinstance(given, str) else json.dumps(given)


@asynccontextmanager
async def sessions_in(
    commands_folder: Path,
    database: Path,
    *,
    isolation: Isolation | None = None,
    limits: Limits | None = None,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Callable[[], Any]]:
    """Makes sessions that share a shell. In the end nothing that they started runs."""
    live, clock = LocalLive(), SystemClock()
    store = await SqliteStore.open(database, node="here")
    async with Commands(commands_folder, settings=SETTINGS) as commands:
        desk = TaskDesk(store, commands, live, clock, host=await commands.folder_id(), redaction=Redaction([SECRET]))
        shell = Shell(
            commands,
            desk,
            isolation=isolation or Unconfined(),
            limits=limits or Limits(),
            environment=environment,
        )
        made: list[Key] = []

        async def make() -> Session:
            key = Key(Owner("me"), SessionId(random_id()))
            made.append(key)
            operations = Operations(
                store=store, live=live, clock=clock, bounds=Bounds(), node="here", host="here", producer="test"
            )
            await operations.create(key.owner, SessionOptions(title="T"), key.session)
            await operations.send(key, "Hi")
            (claim,) = await store.claim(limit=1)
            return Session(store, claim.lease, shell)

        try:
            yield make
        finally:
            for status in await commands.listed():
                if Key(Owner(status.key.owner), SessionId(status.key.session)) in made:
                    await commands.kill(status.key, 0)
            await store.close()


def task_in(result: ToolResult) -> TaskId:
    return TaskId(decoded(result.content)["task_id"])


async def file_says(path: Path) -> str:
    """Wait until a file has a whole line, and give it."""
    await comes_true(lambda: path.exists() and path.read_text().endswith("\n"))
    return (await asyncio.to_thread(path.read_text)).strip()
