"""What a server tells of sessions, requests, messages that wait and tasks. Times are milliseconds since 1970.

Fields that a newer server adds are passed over.
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
"""`removed`: the message was taken out of the queue before it had a turn."""


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
    """The turn that is unfinished."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a session asks of somebody. What is asked is in `details`."""

    id: str
    kind: RequestKind
    title: str
    turn_id: str
    tool_call_id: str
    opened_at: int
    details: dict[str, Any] = {}


class PermissionOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a rule was granted. What was not noted is empty or None."""

    granted_by: str
    granted_at: int | None
    session_id: str | None


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that holds until it is taken back: in one session, in a directory, or everywhere."""

    id: str
    rule: str
    scope: Literal["session", "directory", "everywhere"]
    directory: str | None
    session_id: str | None
    origins: tuple[PermissionOrigin, ...] = ()
    """The oldest first."""


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits."""

    message_id: str
    text: str
    delivery: str
    accepted_at: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was started for a session."""

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
    """By the server's clock."""
    working_directory: str = ""
    output_file: str = ""
    alias: str = ""
    """What the model calls it, where it chose a name itself."""

    @property
    def is_running(self) -> bool:
        return self.status in RUNNING


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    name: str


class KilledTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a kill came to."""

    task: Task
    killed_processes: tuple[ProcessView, ...]
    escaped_processes: tuple[ProcessView, ...]
    """Known to be running still."""


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a command wrote. Offsets are bytes."""

    offset: int
    """Where `text` begins. Beyond what was asked for: what lay between is gone."""
    text: str
    next_offset: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a message, readable again by its id."""

    message_id: str
    state: Literal["accepted", "promoted", "removed", "refused"]
    delivery: str
    duplicate: bool = False
    """It had been accepted before: this is the receipt of the first."""
    while_running: bool = False
    returned: tuple[str, ...] = ()
    """Texts that `interrupt` took out of the queue."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    answer_id: str
    duplicate: bool = False


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop did, or that it is about to."""

    stop_id: str
    outcome: Literal["stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before"]
    returned: tuple[str, ...] = ()
    """Messages that waited, given back."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """How far a session is, and whether anything happens in it by itself."""

    head: int
    is_settled: bool


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a turn: it ended, or it waits for the requests."""

    turn_id: str
    reason: TurnReason
    text: str
    """What the model said last."""
    error: SessionError | None = None
    requests: tuple[RequestView, ...] = ()


# What a reader is given


class QueueChanged(msgspec.Struct, frozen=True, kw_only=True):
    """All messages that wait now."""

    messages: tuple[QueuedMessage, ...]


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The connection broke, or is there again. Nothing is missed by it."""

    is_back: bool
    reason: str = ""


Reading = Event | Delta | Progress | QueueChanged | Connection
