"""Tasks as the store keeps them: a row for every command, from before its start until a day after its end."""

from typing import Literal

import msgspec

from holdfast.events.ids import Key, TaskId, ToolCallId
from holdfast.events.task import TaskStatus

Killer = Literal["model", "person", "stop", "deletion"]
"""Who wants a task ended: the model by a tool, a person, the stop of its turn, or the deletion of its session."""


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a session."""

    key: Key
    task_id: TaskId
    tool_call_id: ToolCallId
    call_key: str
    """The command's key on its machine is this, with the session's."""
    command: str
    description: str = ""
    directory: str = ""
    host: str
    """The machine, and there the folder, that it runs in. No other can see or end it."""
    output_file: str = ""
    alias: str = ""
    """What the model calls it, where it chose a name itself."""
    foreground: bool = True
    """The turn waits for it: its end is the result of a call, and no news."""
    status: TaskStatus = "running"
    stalled: bool = False
    exit_code: int | None = None
    detail: str = ""
    started_at: int
    ended_at: int | None = None
    kill_asked: Killer | None = None
    host_silent_ms: int = 0
    """How long its machine has not said that it looks after its tasks, counted by the database's clock, and at the most
    since the row was written. Set by the store: processes may differ in what time it is."""


class TaskEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    status: TaskStatus
    exit_code: int | None = None
    detail: str = ""
    ended_at: int


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """What the result of a call says of its command: it goes on in the background, it has ended so, or, if neither is
    known, it is to be killed if it runs."""

    task_id: TaskId
    goes_on: bool = False
    ending: TaskEnding | None = None
