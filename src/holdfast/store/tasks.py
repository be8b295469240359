"""Tasks as the store keeps them: a row for every command, from before its start until a day after its end."""

from typing import Literal

import msgspec

from holdfast.events.ids import Key, TaskId, ToolCallId
from holdfast.events.task import TaskStatus

Killer = Literal["model", "person", "stop", "deletion"]
"""The requester of a kill: the model by a tool, a person, the stop of its turn, or the deletion of its session."""


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a session."""

    key: Key
    task_id: TaskId
    tool_call_id: ToolCallId
    call_key: str
    """The command's key on its machine consists of this and the session's key."""
    command: str
    description: str = ""
    directory: str = ""
    host: str
    """The machine, and the folder on it, that the command runs in. No other machine can see or end it."""
    output_file: str = ""
    alias: str = ""
    """The model's name for the task, where it chose one."""
    foreground: bool = True
    """The turn waits for it: its end becomes the result of a tool call, and no news is put."""
    status: TaskStatus = "running"
    stalled: bool = False
    exit_code: int | None = None
    detail: str = ""
    started_at: int
    ended_at: int | None = None
    kill_asked: Killer | None = None
    host_silent_ms: int = 0
    """How long its machine's task keeper has been silent, by the database's clock, counted from the writing of the row
    at the earliest. Set by the store, because the clocks of processes may differ."""


class TaskEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    status: TaskStatus
    exit_code: int | None = None
    detail: str = ""
    ended_at: int


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the result of a tool call changes its command: it goes on in the background, it has ended with `ending`, or,
    if neither is known, it is to be killed if it runs."""

    task_id: TaskId
    goes_on: bool = False
    ending: TaskEnding | None = None
