"""The log's unit of truth: a body with its place, its id and its time. And the list of all bodies there are."""

import msgspec

from holdfast.events import message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.ids import EventId, Position

RECORDS: tuple[type[Body], ...] = (
    session.SessionStarted,
    session.SessionResumed,
    session.TitleChanged,
    session.ModelChanged,
    session.SessionInfo,
    session.SettingsChanged,
    session.ModeChanged,
    session.PlanChanged,
    session.ToolDelivered,
    session.SessionShutdown,
)
"""May be appended by any operation without a lease; they take effect at the holder's next step."""

PROGRESS: tuple[type[Body], ...] = (
    session.SessionError,
    session.Truncated,
    turn.TurnStarted,
    turn.TurnWaiting,
    turn.TurnEnded,
    turn.StepStarted,
    turn.StepEnded,
    turn.Claimed,
    turn.Aborted,
    message.UserMessage,
    message.AssistantMessage,
    message.Sealed,
    message.Noted,
    message.Usage,
    message.CallFailed,
    tool.ToolStarted,
    tool.ToolAttempted,
    tool.ToolCompleted,
    task.TaskStarted,
    task.TaskNotified,
    request.PermissionRequested,
    request.PermissionCompleted,
    request.ExternalToolRequested,
    request.ExternalToolCompleted,
    request.UserInputRequested,
    request.UserInputCompleted,
)
"""Only the holder of the session's lease appends these, under its fence."""


SHOWN: tuple[type[Body], ...] = (
    session.SessionError,
    session.SessionInfo,
    turn.TurnEnded,
    message.AssistantMessage,
    request.PermissionRequested,
    request.ExternalToolRequested,
    request.UserInputRequested,
)
"""What tells the owner of a session something: an answer, a question, a line for people, how a turn ended. What people
sent is not among it, nor what tools gave."""


class Unknown(Body, frozen=True, tag="holdfast.unknown"):
    """An event that a newer release wrote. It keeps its place in the log and changes nothing."""

    original_type: str
    original_version: int
    data: msgspec.Raw


class Encoded(Body, frozen=True, tag="holdfast.encoded"):
    """An event on its way into a log as the bytes that are kept there: a whole log takes up less memory like that.
    A log that is read has none of these."""

    kept_type: str
    kept_version: int
    data: bytes
    said: bytes | None = None
    """What a person wrote, for who looks for it."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event in the log; before it is committed its position is 0."""

    position: Position
    id: EventId
    time: int
    """Milliseconds since 1970 by the writer's clock: for people, never for order."""
    body: Body

    def at(self, position: Position) -> "Event":
        return Event(position, self.id, self.time, self.body)


def type_of(body: Body) -> str:
    """The name of an event's type, as the log and the wire say it."""
    return str(type(body).__struct_config__.tag)
