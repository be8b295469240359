"""Turns the outcome of a command into the ending in its task's row and into the notice for the model. Pure."""

from collections.abc import Iterable

from holdfast.commands.command import CommandOutcome, ProcessInfo
from holdfast.events.task import NoticeKind, TaskNotice, TaskStatus
from holdfast.store.tasks import TaskEnding, TaskRow

MAX_COMMAND_CHARACTERS = 2_000
"""The part of a command that a notice or a list shows."""


def ending_of(outcome: CommandOutcome, limit_seconds: float) -> TaskEnding:
    """Returns the ending with the true exit code where it is known, and a reason where the code does not explain the
    end."""
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
            status, detail = "failed", f"It ran for longer than its limit of {limit_seconds:g} seconds."
        case "lost":
            status, detail = "lost", outcome.detail or "How it ended is unknown: its supervisor, or the machine, died."
        case "not_started":
            status, detail = "failed", f"It could not be started: {outcome.detail}"
    if outcome.escaped:
        detail = f"{detail} Not everything ended; still running: {names_of(outcome.escaped)}.".strip()
    return TaskEnding(
        status=status, exit_code=outcome.exit_code, detail=detail, ended_at=max(0, int(outcome.at * 1000))
    )


def notice_of(row: TaskRow, ending: TaskEnding, tail: str) -> TaskNotice | None:
    """Returns the news of an end; None if the result of the call reports it, or if no session is left to tell."""
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
    """Lists processes by name and pid, for people and models to read."""
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
