"""From how a command ended to what its task's row says and what the model is told. Pure."""

from collections.abc import Iterable

from holdfast.commands.command import CommandOutcome, ProcessInfo
from holdfast.events.task import NoticeKind, TaskNotice, TaskStatus
from holdfast.store.tasks import TaskEnding, TaskRow

MAX_COMMAND_CHARACTERS = 2_000
"""What a notice and a list show of a command."""


def ending_of(outcome: CommandOutcome, limit_seconds: float) -> TaskEnding:
    """The true exit code where there is one; why, where it does not say."""
    status: TaskStatus = "completed" if outcome.exit_code == 0 else "failed"
    detail = ""
    match outcome.reason:
        case "exited" if outcome.left_behind:
            detail = f"It left something running: {names_of(outcome.left_behind)}."
        case "exited":
            pass
        case "killed":
            status = "killed"
        case "time":
            status, detail = "failed", f"It ran for longer than the {limit_seconds:g} seconds that it was given."
        case "lost":
            status, detail = "lost", outcome.detail or "Nobody saw how it ended: its supervisor, or the machine, died."
        case "not_started":
            status, detail = "failed", f"It could not be started: {outcome.detail}"
    if outcome.escaped:
        detail = f"{detail} Not everything ended; still running: {names_of(outcome.escaped)}.".strip()
    return TaskEnding(
        status=status, exit_code=outcome.exit_code, detail=detail, ended_at=max(0, int(outcome.at * 1000))
    )


def notice_of(row: TaskRow, ending: TaskEnding, tail: str) -> TaskNotice | None:
    """The news of an end; None where a call's own result tells it, or nobody is left to be told."""
    if row.foreground or row.kill_asked in ("stop", "deletion") or ending.status == "running":
        return None
    silent = row.kill_asked == "model" and ending.status == "killed"
    return _notice(row, ending.status, ending, tail, silent=silent)


def stall_notice_of(row: TaskRow, tail: str, now: int) -> TaskNotice:
    ending = TaskEnding(status="running", ended_at=now)
    return _notice(row, "stalled", ending, tail)


def _notice(row: TaskRow, kind: NoticeKind, ending: TaskEnding, tail: str, *, silent: bool = False) -> TaskNotice:
    return TaskNotice(
        task_id=row.task_id,
        kind=kind,
        command=shortened(row.command),
        description=row.description,
        exit_code=ending.exit_code,
        duration_ms=max(0, ending.ended_at - row.started_at),
        output_file=row.output_file,
        output_tail=tail,
        detail=ending.detail,
        silent=silent,
    )


def shortened(command: str) -> str:
    return command if len(command) <= MAX_COMMAND_CHARACTERS else command[: MAX_COMMAND_CHARACTERS - 1] + "…"


def names_of(processes: Iterable[ProcessInfo]) -> str:
    """Processes, for people and models to read."""
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
