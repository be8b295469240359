"""What the model is told of tasks: a notice when something becomes of one, and the list of those that run.

Everything that a command printed or somebody typed is escaped: it can't end a tag, nor begin one. For the model, output
is quoted besides, like any text from outside: a note is the runtime's own, and what a command printed is not.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from holdfast.events import quote
from holdfast.events.ids import TaskId
from holdfast.events.task import NoticeKind, TaskNotice
from holdfast.session.state import RunningTask

HEADER = "Currently running background tasks:"

SUGGESTION = (
    "It seems to wait for an answer, and nobody can type one: kill it, and run it again with a flag that makes it "
    "non-interactive, or with its input piped in."
)

_BEGINNINGS: dict[NoticeKind, str] = {
    "completed": "A background task completed:",
    "failed": "A background task failed:",
    "killed": "A background task was killed:",
    "lost": "A background task was lost:",
    "stalled": "A background task appears stuck and may need attention:",
}


def notice_text(notice: TaskNotice, seed: str | None = None) -> str:
    """A notice as clients are shown it; with the seed of its session, as the model reads it."""
    known: list[tuple[str, str]] = [
        ("task-id", notice.task_id),
        ("status", notice.kind),
        ("command", notice.command),
        ("description", notice.description),
        ("exit-code", "" if notice.exit_code is None else str(notice.exit_code)),
        ("duration", f"{notice.duration_ms / 1000:.3f}s"),
        ("reason", notice.detail),
        ("output-file", notice.output_file),
        ("output-tail", notice.output_tail),
        ("suggestion", SUGGESTION if notice.kind == "stalled" else ""),
    ]
    lines = [f"  <{name}>{_marked(name, escape(value), seed)}</{name}>" for name, value in known if value]
    return "\n".join((_BEGINNINGS[notice.kind], "<task-notification>", *lines, "</task-notification>"))


def _marked(name: str, text: str, seed: str | None) -> str:
    if seed is None:
        return text
    return quote.quoted(text, "command", seed) if name == "output-tail" else quote.said(text, seed)


def running_tasks(tasks: Iterable[tuple[TaskId, RunningTask]]) -> str:
    """The end of the system prompt while tasks run. It has no clock in it, so that it changes only when they do."""
    lines = [
        f"- [{task_id}] {_one_line(task.description or task.command)} "
        f"(started {_utc(task.started_at)}, output: {task.output_file})"
        for task_id, task in tasks
    ]
    return "\n".join((HEADER, *lines)) if lines else ""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def _utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
