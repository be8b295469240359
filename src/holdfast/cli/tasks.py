"""`holdfast tasks`: list, show, follow and kill the commands of all sessions, whichever process runs them."""

import codecs
import shutil
import sys
from collections.abc import Iterable

import msgspec

from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import PROSE, visible
from holdfast.cli.hints import Hints
from holdfast.cli.home import OutputPiece, follow_output, last_output, output, output_size, tasks_of
from holdfast.cli.lookup import find_session, find_task
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.cli.task_lines import ending, heading, processes, task_line
from holdfast.cli.transcript import one_line
from holdfast.protocol.home import Home
from holdfast.protocol.refusal import NotFound
from holdfast.protocol.task import KilledTask, TaskView

READ_BYTES = 65_536


async def list_tasks(target: Target, session: str | None, *, ended_too: bool, as_json: bool) -> None:
    """Print the running tasks, and with `ended_too` those that ended and are still kept."""
    async with open_home(target) as home:
        known = await tasks_of(home)
        if session is not None:
            wanted = (await find_session(home, session)).id
            known = [task for task in known if task.session_id == wanted]
    running = [task for task in known if task.is_running]
    ended = [task for task in reversed(known) if not task.is_running]
    shown = [*running, *ended] if ended_too else running
    if as_json:
        _print_json(shown)
    elif shown:
        _print_list(shown)
    else:
        print(_no_task_runs(ended, session, ended_too=ended_too, hints=target.hints))


def _print_json(tasks: Iterable[TaskView]) -> None:
    for task in tasks:
        print(msgspec.json.encode(task).decode())


def _print_list(tasks: Iterable[TaskView]) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    print(heading(width=width))
    for task in tasks:
        print(task_line(task, width=width))


def _no_task_runs(ended: list[TaskView], session: str | None, *, ended_too: bool, hints: Hints) -> str:
    where = " in this session" if session is not None else ""
    if not ended:
        return f"No task runs{where}" + (", and none ended lately." if ended_too else ".")
    options = ("--session", session, "--all") if session is not None else ("--all",)
    several = "1 has ended" if len(ended) == 1 else f"{len(ended)} have ended"
    return f"No task runs{where}. {several}: {hints.command('tasks', 'list', *options)}"


async def show_task(target: Target, wanted: str, *, as_json: bool) -> None:
    async with open_home(target) as home:
        task = await find_task(home, wanted)
        if as_json:
            _print_json([task])
            return
        for name, value in _facts(task):
            print(f"{name + ':':14}{value}")
        end = await last_output(home, task)
        tail = visible(end or "").rstrip("\n")
        none = "It has no output, or its output is not kept any more."
        print(f"\n{tail or ('Its output is on another machine.' if end is None else none)}")
        if end is not None and task.is_running:
            print(f"\nTo follow it: {target.hints.command('tasks', 'tail', task.id)}")


def _facts(task: TaskView) -> list[tuple[str, str]]:
    facts = [
        ("task", visible(task.id)),
        ("status", ending(task)),
        ("session", visible(task.session_id)),
        ("description", one_line(task.description)),
        ("name", one_line(task.alias)),
        ("command", visible(task.command).replace("\n", "\n" + " " * 14)),
        ("directory", one_line(task.working_directory)),
        ("started", when(task.started_at)),
        ("ended", when(task.ended_at) if task.ended_at is not None else ""),
        ("output", one_line(task.output_file, 1000)),
    ]
    return [(name, value) for name, value in facts if value]


async def tail_task(target: Target, wanted: str, *, count: int, follow: bool) -> None:
    """Print the last bytes of a task's output, then what it writes until it ends: raw to a file or pipe, with control
    characters escaped on a terminal. How it ended goes to stderr."""
    async with open_home(target) as home:
        task = await find_task(home, wanted)
        out = RawOutput(max(0, await output_size(home, task) - count))
        if follow:
            async for piece in follow_output(home, task, out.offset):
                out.write(piece)
        else:
            while out.write(await output(home, task, out.offset, READ_BYTES)):
                pass
        out.end()
        print(f"holdfast: Task {visible(task.id)} {await _ending_now(home, task)}", file=sys.stderr)


async def _ending_now(home: Home, task: TaskView) -> str:
    try:
        return ending(await home.open(task.session_id).task(task.id))
    except NotFound:
        return "is over: its session was deleted."


class RawOutput:
    """Writes a task's output to stdout and reports gaps in it. On a terminal, control characters are escaped: a command
    could otherwise imitate a question of ours and its answer."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._ends_a_line = True
        self._is_terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: OutputPiece) -> bool:
        """Write a piece, and return whether there was anything in it."""
        if piece.end == piece.offset:
            return False
        if piece.offset > self.offset:
            print(f"holdfast: {piece.offset - self.offset:,} bytes are not kept any more.", file=sys.stderr)
        if self._is_terminal:
            self._show(self._decoder.decode(piece.data))
        else:
            sys.stdout.buffer.write(piece.data)
            sys.stdout.buffer.flush()
        self.offset = piece.end
        self._ends_a_line = piece.data.endswith(b"\n")
        return True

    def end(self) -> None:
        """End the last line on a terminal; a file gets only the task's own bytes."""
        if self._is_terminal:
            self._show(self._decoder.decode(b"", final=True))
        if not self._ends_a_line and self._is_terminal:
            print(flush=True)

    def _show(self, text: str) -> None:
        sys.stdout.write(visible(text.replace("\r\n", "\n"), keep=PROSE))
        sys.stdout.flush()


async def kill_task(target: Target, wanted: str) -> None:
    """Kill a task and every process of it that can be found. Raises a refusal if one is known to have escaped."""
    async with open_home(target) as home:
        task = await find_task(home, wanted)
        print_kill(await home.open(task.session_id).kill_task(task.id))


def print_kill(killed: KilledTask) -> None:
    """Print the processes that ended. Raises a refusal if some did not, or if the task had already ended."""
    task, ended, left = killed.task, processes(killed.killed_processes), processes(killed.escaped_processes)
    if task.status not in ("completed", "failed"):
        print(f"Killed task {visible(task.id)}" + (f"; ended: {ended}." if ended else "."))
    elif not ended and not left:
        raise Refusal("task_not_running", _ended_by_itself(task), exit_code=WORLD)
    elif ended:
        print(f"Task {visible(task.id)} had {task.status}; ended what it had left running: {ended}.")
    if left:
        raise Refusal("task_escaped", f"Not everything ended. Still running: {left}.", exit_code=WORLD)


def _ended_by_itself(task: TaskView) -> str:
    return f"Task {visible(task.id)} is not running: it {task.status} before it could be killed."
