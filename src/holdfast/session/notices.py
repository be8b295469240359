"""Texts for the model about the session's state: a notice when a task ends or stalls, the list of running tasks, and
the permission rules that were granted.

Commands, descriptions and output are escaped, so that they can't close or open a tag. Output and rules are also quoted
for the model, like all text from outside.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from holdfast.events import quote
from holdfast.events.ids import TaskId
from holdfast.events.task import NoticeKind, TaskNotice
from holdfast.session.state import RunningTask

HEADER = "Currently running background tasks:"

RULES_HEADER = "Permission rules granted so far; each call is judged when it is made:"

MAX_LISTED_RULES = 20
"""A session may have hundreds of rules, and is judged by all of them; the model reads the newest."""

NO_TASKS = "No background tasks are running any more."

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
    """A notice as clients see it; given the seed of its session, as the model reads it."""
    fields: list[tuple[str, str]] = [
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
    lines = [f"  <{name}>{_marked(name, _escaped(value), seed)}</{name}>" for name, value in fields if value]
    return "\n".join((_BEGINNINGS[notice.kind], "<task-notification>", *lines, "</task-notification>"))


def _escaped(text: str) -> str:
    """The text without characters that would be markup. The library for it is large, and this is all it would do."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _marked(name: str, text: str, seed: str | None) -> str:
    if seed is None:
        return text
    return quote.quoted(text, "command", seed) if name == "output-tail" else quote.said(text, seed)


def running_tasks(tasks: Iterable[tuple[TaskId, RunningTask]]) -> str:
    """The list of running tasks, for a note at the end of the conversation. It shows no current time, so that it
    changes only when a task starts or ends."""
    lines = [
        f"- [{task_id}] {_one_line(task.description or task.command)} "
        f"(started {_utc(task.started_at)}, output: {task.output_file})"
        for task_id, task in tasks
    ]
    return "\n".join((HEADER, *lines)) if lines else NO_TASKS


def granted_rules(rules: Sequence[str], seed: str) -> str:
    """The permission rules of a session, for the note beside a summary; empty without one."""
    if not rules:
        return ""
    lines = [f"- {_one_line(rule)}" for rule in rules[-MAX_LISTED_RULES:]]
    if older := len(rules) - len(lines):
        lines.insert(0, f"- {older} older ones")
    listed = "\n".join(lines)
    return f"{RULES_HEADER}\n{quote.quoted(listed, 'client', seed)}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def _utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
