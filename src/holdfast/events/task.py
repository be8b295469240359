"""Events about tasks: commands that went on in the background, and what the model is told of them."""

from typing import Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import TaskId, ToolCallId

TaskStatus = Literal["running", "completed", "failed", "killed", "lost"]
"""`failed`: it ended with another exit code than 0, or met a ceiling. `lost`: nobody saw how it ended."""

NoticeKind = Literal["completed", "failed", "killed", "lost", "stalled"]
"""What the model may be told of a task, each at most once. `stalled`: it is quiet and seems to wait for an answer."""


class TaskNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """All that is told of one change of a task."""

    task_id: TaskId
    kind: NoticeKind
    command: str
    description: str = ""
    exit_code: int | None = None
    duration_ms: int = 0
    output_file: str = ""
    output_tail: str = ""
    detail: str = ""
    """Why, where the exit code does not say: the ceiling that was met, what escaped a kill."""
    silent: bool = False
    """The model knows already, since it ended the task itself: it is only taken off the list of running ones."""


class TaskStarted(Body, frozen=True, tag="holdfast.task_started"):
    """A command goes on in the background. It stands in the same unit as the result of the call that started it."""

    task_id: TaskId
    tool_call_id: ToolCallId
    command: str
    description: str = ""
    output_file: str = ""
    flipped: bool = False
    """It was started in the foreground, and took longer than anybody wanted to wait."""


class TaskNotified(Body, frozen=True, tag="holdfast.task_notified"):
    """The model is told of a task in its next call."""

    notice: TaskNotice
