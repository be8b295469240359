"""`holdfast tasks`: the commands of all sessions: listed, looked at, followed and killed, whoever runs them.

A row may be older than the machine's knowledge, if nothing was open since its command ended: whatever is shown here was
asked of the machine first.
"""

import asyncio
import shutil
import sys
from collections.abc import Iterable

import msgspec

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.finding import find_session, find_task
from holdfast.cli.hints import Hints
from holdfast.cli.opening import opened
from holdfast.cli.session_lines import when
from holdfast.cli.task_lines import ending, heading, processes, task_json, task_line
from holdfast.cli.terminal import neutral, one_line
from holdfast.commands.errors import CommandsError, NoSuchCommand
from holdfast.commands.output import Chunk
from holdfast.config import Config
from holdfast.server.errors import NotFound
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import Killed
from holdfast.tasks.errors import TaskError

READ_BYTES = 65_536


async def refreshed(runtime: Runtime, rows: Iterable[TaskRow]) -> list[TaskRow]:
    """The rows as their machine knows them now, fit to be shown, without those whose session was deleted meanwhile."""
    found = await asyncio.gather(*(runtime.tasks.refresh(row) for row in rows), return_exceptions=True)
    for failure in found:
        if isinstance(failure, BaseException) and not isinstance(failure, NotFound):
            raise failure
    return [runtime.tasks.desk.without_secrets(row) for row in found if isinstance(row, TaskRow)]


async def list_tasks(config: Config, session: str | None, *, ended_too: bool, as_json: bool, hints: Hints) -> None:
    """Those that run, and if wanted those that ended within the time that tasks are kept for."""
    async with opened(config, work=False) as runtime:
        rows = await runtime.tasks.of_owner(runtime.owner)
        if session is not None:
            key = (await find_session(runtime, session)).key
            rows = tuple(row for row in rows if row.key == key)
        known = await refreshed(runtime, rows)
        running = [row for row in known if row.status == "running"]
        ended = [row for row in reversed(known) if row.status != "running"]
        shown = [*running, *ended] if ended_too else running
        if as_json:
            _print_json(runtime, shown)
        elif shown:
            _print_list(runtime, shown)
        else:
            print(_nothing(ended, session, ended_too=ended_too, hints=hints))


def _print_json(runtime: Runtime, rows: Iterable[TaskRow]) -> None:
    now = runtime.clock.now_ms()
    for row in rows:
        print(msgspec.json.encode(task_json(row, runtime.tasks.status(row), now=now)).decode())


def _print_list(runtime: Runtime, rows: Iterable[TaskRow]) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    now = runtime.clock.now_ms()
    print(heading(width=width))
    for row in rows:
        print(task_line(row, runtime.tasks.status(row), now=now, width=width))


def _nothing(ended: list[TaskRow], session: str | None, *, ended_too: bool, hints: Hints) -> str:
    where = " in this session" if session is not None else ""
    if not ended:
        return f"No task runs{where}" + (", and none ended lately." if ended_too else ".")
    options = ("--session", session, "--all") if session is not None else ("--all",)
    several = "1 has ended" if len(ended) == 1 else f"{len(ended)} have ended"
    return f"No task runs{where}. {several}: {hints.command('tasks', 'list', *options)}"


async def show_task(config: Config, wanted: str, *, as_json: bool, hints: Hints) -> None:
    async with opened(config, work=False) as runtime:
        row = await _found(runtime, wanted)
        if as_json:
            _print_json(runtime, [row])
            return
        for name, value in _facts(runtime, row):
            print(f"{name + ':':14}{value}")
        here = row.host == runtime.tasks.desk.host
        tail = neutral(await runtime.tasks.desk.tail(row)).rstrip("\n")
        none = "It has written nothing, or it is not kept any more." if here else "What it wrote is on its own machine."
        print(f"\n{tail or none}")
        if here and row.status == "running":
            print(f"\nTo follow it: {hints.command('tasks', 'tail', row.task_id)}")


def _facts(runtime: Runtime, row: TaskRow) -> list[tuple[str, str]]:
    status = runtime.tasks.status(row)
    facts = [
        ("task", neutral(row.task_id)),
        ("status", ending(row, status, now=runtime.clock.now_ms())),
        ("session", neutral(row.key.session)),
        ("description", one_line(row.description)),
        ("name", one_line(row.alias)),
        ("command", neutral(row.command).replace("\n", "\n" + " " * 14)),
        ("directory", one_line(row.directory)),
        ("started", when(row.started_at)),
        ("ended", when(row.ended_at) if row.ended_at is not None else ""),
        ("output", one_line(row.output_file, 1000)),
    ]
    return [(name, value) for name, value in facts if value]


async def tail_task(config: Config, wanted: str, *, count: int, follow: bool) -> int:
    """The last bytes that it wrote, as they are; then what comes, until it ends. How it ended is told on stderr."""
    async with opened(config, work=False) as runtime:
        row = await _found(runtime, wanted)
        out = RawOutput(max(0, await _size(runtime, row) - count))
        if follow:
            async for chunk in runtime.tasks.follow(row.key, row.task_id, out.offset):
                out.write(chunk)
        else:
            while out.write(await runtime.tasks.read(row.key, row.task_id, out.offset, READ_BYTES)):
                pass
        out.end()
        print(f"holdfast: Task {neutral(row.task_id)} {await _ending_now(runtime, row)}", file=sys.stderr)
    return 0


async def _ending_now(runtime: Runtime, row: TaskRow) -> str:
    try:
        now = await runtime.tasks.refresh(row)
    except NotFound:
        return "is over: its session was deleted."
    return ending(now, runtime.tasks.status(now), now=runtime.clock.now_ms())


class RawOutput:
    """Puts bytes out as they are, and notices where some are missing."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._ends_a_line = True

    def write(self, chunk: Chunk) -> bool:
        """Whether there was anything."""
        if not chunk.data:
            return False
        if chunk.offset > self.offset:
            print(f"holdfast: {chunk.offset - self.offset:,} bytes are not kept any more.", file=sys.stderr)
        sys.stdout.buffer.write(chunk.data)
        sys.stdout.buffer.flush()
        self.offset = chunk.end
        self._ends_a_line = chunk.data.endswith(b"\n")
        return True

    def end(self) -> None:
        """On a terminal the last words begin a line of their own; a file gets only what the task wrote."""
        if not self._ends_a_line and sys.stdout.isatty():
            print(flush=True)


async def kill_task(config: Config, wanted: str) -> int:
    """End it, with all that can be found of it; 1 if something is known to have escaped."""
    async with opened(config, work=False) as runtime:
        row = await _found(runtime, wanted)
        tell_of_kill(await runtime.tasks.kill(row.key, row.task_id))
    return 0


def tell_of_kill(killed: Killed) -> None:
    """What ended, and what did not: then it is a failure."""
    ended = processes(killed.report.killed)
    if killed.row.status not in ("completed", "failed"):
        print(f"Killed task {neutral(killed.row.task_id)}" + (f"; ended: {ended}." if ended else "."))
    elif not killed.report.killed and not killed.report.escaped:
        raise Refusal("task_not_running", _ended_by_itself(killed.row), exit_code=WORLD)
    elif ended:
        print(f"Task {neutral(killed.row.task_id)} had {killed.row.status}; ended what it had left running: {ended}.")
    if killed.report.escaped:
        left = processes(killed.report.escaped)
        raise Refusal("task_escaped", f"Not everything ended. Still running: {left}.", exit_code=WORLD)


def _ended_by_itself(row: TaskRow) -> str:
    return f"Task {neutral(row.task_id)} is not running: it {row.status} before it could be killed."


async def _found(runtime: Runtime, wanted: str) -> TaskRow:
    return runtime.tasks.desk.without_secrets(await runtime.tasks.refresh(await find_task(runtime, wanted)))


async def _size(runtime: Runtime, row: TaskRow) -> int:
    try:
        return await runtime.tasks.desk.size(row)
    except TaskError as error:
        raise Refusal(error.code, f"{error}.", exit_code=WORLD) from error
    except NoSuchCommand:
        raise Refusal("output_gone", f"What task {row.task_id} wrote is not kept any more.", exit_code=WORLD) from None
    except CommandsError as error:
        raise Refusal("commands_unavailable", f"{error}.", exit_code=WORLD) from error
