"""Events about tasks: commands that run in the background, and the notices of them for the model."""

from typing import Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import TaskId, ToolCallId

TaskStatus = Literal["running", "completed", "failed", "killed", "lost"]
"""`failed`: it ended with a non-zero exit code, or reached a limit. `lost`: its outcome is unknown."""

NoticeKind = Literal["completed", "failed", "killed", "lost", "stalled"]
"""The kinds of notice about a task; the model gets each at most once. `stalled`: the task is silent and seems to wait
for input."""


class TaskNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One change of a task, with everything that the model learns of it."""

    task_id: TaskId
    kind: NoticeKind
    command: str
    description: str = ""
    exit_code: int | None = None
    duration_ms: int = 0
    output_file: str = ""
    output_tail: str = ""
    detail: str = ""
    """More than the exit code says: the limit that was reached, the processes that escaped a kill."""
    silent: bool = False
    """The model knows already, because it ended the task itself: the notice only removes the task from the list of
    running ones."""


class TaskStarted(Body, frozen=True, tag="holdfast.task_started"):
    """A command runs on in the background. The event is in the same unit as the result of the call that started it."""

    task_id: TaskId
    tool_call_id: ToolCallId
    command: str
    description: str = ""
    output_file: str = ""
    flipped: bool = False
    """The command started in the foreground and outlasted the turn's wait for it."""


class TaskNotified(Body, frozen=True, tag="holdfast.task_notified"):
    """The model's next call carries this notice."""

    notice: TaskNotice
