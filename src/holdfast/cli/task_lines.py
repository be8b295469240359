"""Tasks as lines for people. Pure."""

from collections.abc import Iterable

from holdfast.cli.escapes import visible
from holdfast.cli.request_lines import short
from holdfast.cli.session_lines import when
from holdfast.cli.transcript import duration, one_line
from holdfast.protocol.task import ProcessView, ShownTaskStatus, TaskView

NARROW = 100
"""Below this many columns a task takes two lines: the second has its description or command."""

INDENT = "    "


def heading(*, width: int) -> str:
    """The heading of a list of task lines."""
    if width < NARROW:
        return f"{'TASK':13}  {'STATUS':11}  {'TIME':>8}  EXIT"
    return f"{'TASK':13}  {'SESSION':8}  {'STATUS':11}  {'STARTED':16}  {'TIME':>8}  EXIT  WHAT"


def task_line(task: TaskView, *, width: int) -> str:
    """The id, session, status, start, duration, exit code, and description or command."""
    name, time = f"{visible(task.id):13}", f"{duration(task.duration_ms):>8}"
    code = "-" if task.exit_code is None else str(task.exit_code)
    if width < NARROW:
        what = f"{short(task.session_id)} {when(task.started_at)[11:]} {_label(task)}"
        return f"{name}  {task.status:11}  {time}  {code:>4}\n{INDENT}{one_line(what, max(width - len(INDENT), 20))}"
    start = f"{name}  {short(task.session_id):8}  {task.status:11}  {when(task.started_at)}  {time}  {code:>4}  "
    return start + one_line(_label(task), max(width - len(start), 20))


def _label(task: TaskView) -> str:
    """The description or command, with a mark if the turn waits for it."""
    return ("(waited for) " if task.foreground and task.is_running else "") + one_line(task.description or task.command)


def ending(task: TaskView) -> str:
    """How a task ended, or that it still runs."""
    parts = [STATES[task.status]]
    if task.exit_code is not None:
        parts.append(f"exit code {task.exit_code}")
    parts.append(duration(task.duration_ms))
    return " · ".join(parts) + (f". {one_line(task.detail)}" if task.detail else ".")


STATES: dict[ShownTaskStatus, str] = {
    "running": "runs",
    "stalled": "runs, but seems to wait for input that it can't get",
    "unreachable": "is on another machine, which has sent no heartbeat for a while",
    "completed": "completed",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost: how it ended is not known",
}


def processes(found: Iterable[ProcessView]) -> str:
    return ", ".join(f"{one_line(process.name)} (pid {process.pid})" for process in found)
