"""Tasks: the commands of sessions, their output, and the result of a kill."""

from typing import Final, Literal

import msgspec

from holdfast.events.ids import TaskId

ShownTaskStatus = Literal["running", "stalled", "unreachable", "completed", "failed", "killed", "lost"]
"""The status that the store has, and for a running command what is known of it now."""

UNFINISHED: Final = frozenset({"running", "stalled", "unreachable"})


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was started for a session."""

    id: TaskId
    session_id: str
    command: str
    description: str
    status: ShownTaskStatus
    foreground: bool
    """The turn waits for it."""
    exit_code: int | None
    detail: str
    started_at: int
    ended_at: int | None
    duration_ms: int
    """Until its end, or until now."""
    tool_call_id: str
    working_directory: str
    output_file: str
    alias: str
    """The name that the model chose for it, if it chose one."""

    @property
    def is_running(self) -> bool:
        return self.status in UNFINISHED


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first, with the commands that turns wait for."""

    tasks: tuple[TaskView, ...]


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    name: str


class KilledTask(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskView
    killed: int
    """Processes that were killed."""
    escaped: int
    """Processes that could not be killed."""
    killed_processes: tuple[ProcessView, ...]
    escaped_processes: tuple[ProcessView, ...]


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a command's output, standard output and standard error as they came. Offsets are in bytes."""

    offset: int
    """Where `text` begins. If it is beyond the requested offset, the output in between is gone."""
    text: str
    next_offset: int
    """The offset of the output that follows. The same as `offset`: there is no more output for now."""
