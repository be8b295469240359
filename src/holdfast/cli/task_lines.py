"""Tasks in words: a line each for lists and conversations, and the objects that `--json` prints. Pure."""

from collections.abc import Iterable
from typing import Any

from holdfast.cli.session_lines import when
from holdfast.cli.terminal import duration, neutral, one_line, short
from holdfast.commands.command import Process
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import ShownStatus

NARROW = 100
"""Below this many columns a task takes two lines: its figures, and what it is."""

INDENT = "    "


def heading(*, width: int) -> str:
    """What stands above the lines of a list."""
    if width < NARROW:
        return f"{'TASK':13}  {'STATUS':11}  {'TIME':>8}  EXIT"
    return f"{'TASK':13}  {'SESSION':8}  {'STATUS':11}  {'STARTED':16}  {'TIME':>8}  EXIT  WHAT"


def task_line(row: TaskRow, status: ShownStatus, *, now: int, width: int) -> str:
    """Id, session, status, start, duration, exit code, and its description or command."""
    task, time = f"{neutral(row.task_id):13}", f"{duration(lasted(row, now)):>8}"
    code = "-" if row.exit_code is None else str(row.exit_code)
    if width < NARROW:
        what = f"{short(row.key.session)} {when(row.started_at)[11:]} {label(row)}"
        return f"{task}  {status:11}  {time}  {code:>4}\n{INDENT}{one_line(what, max(width - len(INDENT), 20))}"
    start = f"{task}  {short(row.key.session):8}  {status:11}  {when(row.started_at)}  {time}  {code:>4}  "
    return start + one_line(label(row), max(width - len(start), 20))


def label(row: TaskRow) -> str:
    """What people know it by; one that its turn waits for is marked."""
    return ("(waited for) " if _is_waited_for(row) else "") + one_line(row.description or row.command)


def ending(row: TaskRow, status: ShownStatus, *, now: int) -> str:
    """How it ended, or that it has not."""
    parts = [STATES[status]]
    if row.exit_code is not None:
        parts.append(f"exit code {row.exit_code}")
    parts.append(duration(lasted(row, now)))
    return " · ".join(parts) + (f". {one_line(row.detail)}" if row.detail else ".")


STATES: dict[ShownStatus, str] = {
    "running": "runs",
    "stalled": "runs, but seems to wait for an answer that nobody can type",
    "unreachable": "is on another machine, which has not been heard of for a while",
    "completed": "completed",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost: nobody saw how it ended",
}


def lasted(row: TaskRow, now: int) -> int:
    return max(0, (now if row.ended_at is None else row.ended_at) - row.started_at)


def processes(found: Iterable[Process]) -> str:
    return ", ".join(f"{one_line(process.name)} (pid {process.pid})" for process in found)


def task_json(row: TaskRow, status: ShownStatus, *, now: int) -> dict[str, Any]:
    return {
        "task_id": row.task_id,
        "session_id": row.key.session,
        "status": status,
        "foreground": _is_waited_for(row),
        "description": row.description,
        "command": row.command,
        "working_directory": row.directory,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "duration_ms": lasted(row, now),
        "exit_code": row.exit_code,
        "detail": row.detail,
        "output_file": row.output_file,
    }


def _is_waited_for(row: TaskRow) -> bool:
    return row.foreground and row.status == "running"
