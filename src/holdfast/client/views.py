"""Sessions, requests, queued messages and tasks, as a server sends them. Times are milliseconds since 1970.

Fields that a newer server adds are ignored.
"""

from typing import Any, Final, Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.request import RequestKind
from holdfast.events.session import SessionError
from holdfast.live.live import Delta, Progress

SessionStatus = Literal["idle", "queued", "running", "waiting"]

Delivery = Literal["steer", "enqueue", "interrupt", "reject"]

TaskStatus = Literal["running", "stalled", "unreachable", "completed", "failed", "killed", "lost"]

RUNNING: Final = frozenset({"running", "stalled", "unreachable"})

TurnReason = Literal["completed", "stopped", "error", "interrupted", "waiting", "removed"]
"""How a turn ended, or `waiting`. `removed`: the message was taken out of the queue before it had a turn."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list."""

    id: str
    title: str
    status: SessionStatus
    pending_requests: int
    waiting_messages: int
    head: int
    """The position of its last event."""
    created_at: int
    updated_at: int
    turn_id: str | None = None
    """The unfinished turn."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """An open request of a session to a person or a client; `details` has its content."""

    id: str
    kind: RequestKind
    title: str
    turn_id: str
    tool_call_id: str
    opened_at: int
    details: dict[str, Any] = {}


class PermissionOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """One grant of a rule. Fields that were not recorded are empty or None."""

    granted_by: str
    granted_at: int | None
    session_id: str | None


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that is valid until it is revoked: in one session, in a directory, or everywhere."""

    id: str
    rule: str
    scope: Literal["session", "directory", "everywhere"]
    directory: str | None
    session_id: str | None
    origins: tuple[PermissionOrigin, ...] = ()
    """All grants of the rule, oldest first."""


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the queue."""

    message_id: str
    text: str
    delivery: str
    accepted_at: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a session started."""

    id: str
    session_id: str
    command: str
    description: str
    status: TaskStatus
    foreground: bool
    """The turn waits for it."""
    exit_code: int | None
    detail: str
    started_at: int
    ended_at: int | None
    duration_ms: int
    """Measured by the server's clock."""
    working_directory: str = ""
    output_file: str = ""
    alias: str = ""
    """The name that the model chose for it; empty if it chose none."""

    @property
    def is_running(self) -> bool:
        return self.status in RUNNING


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    name: str


class KilledTask(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a kill."""

    task: Task
    killed_processes: tuple[ProcessView, ...]
    escaped_processes: tuple[ProcessView, ...]
    """Processes of the command that are known to be still running."""


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a command's output. Offsets are in bytes."""

    offset: int
    """Where `text` begins. If this is more than the requested offset, the output in between is gone."""
    text: str
    next_offset: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a message, readable again by its id."""

    message_id: str
    state: Literal["accepted", "promoted", "removed", "refused"]
    delivery: str
    duplicate: bool = False
    """The message had been accepted before: this is the receipt of the first time."""
    while_running: bool = False
    returned: tuple[str, ...] = ()
    """Texts that `interrupt` took out of the queue."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    answer_id: str
    duplicate: bool = False


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a stop."""

    stop_id: str
    outcome: Literal["stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before"]
    returned: tuple[str, ...] = ()
    """Texts of queued messages that the stop removed."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a session, and whether it is settled: nothing happens in it before the next message or answer."""

    head: int
    is_settled: bool


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a turn: it ended, or it waits until its requests are answered."""

    turn_id: str
    reason: TurnReason
    text: str
    """The model's last message."""
    error: SessionError | None = None
    requests: tuple[RequestView, ...] = ()


# Readings of a stream


class QueueChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The queue changed; `messages` is all of it."""

    messages: tuple[QueuedMessage, ...]


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The connection broke, or was restored. No reading is lost by it."""

    is_back: bool
    reason: str = ""


Reading = Event | Delta | Progress | QueueChanged | Connection
