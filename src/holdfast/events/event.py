"""An event of the log: a body with its position, id and time. Also the lists of all event types."""

import msgspec

from holdfast.events import compaction, message, request, session, task, tool, turn
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
    compaction.MessagePinned,
)
"""Any operation may append these without a lease; they take effect at the holder's next step."""

PROGRESS: tuple[type[Body], ...] = (
    session.SessionError,
    session.Truncated,
    compaction.CompactionStarted,
    compaction.CompactionEnded,
    turn.TurnStarted,
    turn.TurnWaiting,
    turn.TurnEnded,
    turn.StepStarted,
    turn.StepEnded,
    turn.FellBack,
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
"""Events that are news for the owner of a session and make it unread: an answer, a question, a line for people, the
end of a turn. Messages of people and results of tools are not."""


class Unknown(Body, frozen=True, tag="holdfast.unknown"):
    """An event that a newer release wrote. It keeps its position in the log and changes no state."""

    original_type: str
    original_version: int
    data: msgspec.Raw


class Encoded(Body, frozen=True, tag="holdfast.encoded"):
    """An event on its way into a log, already as the stored bytes: importing a whole log needs less memory this way.
    Reading a log never gives one of these."""

    kept_type: str
    kept_version: int
    data: bytes
    said: bytes | None = None
    """The text that a person wrote, for the search of the release before."""


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
    """The type tag of an event, as the log and the wire have it."""
    return str(type(body).__struct_config__.tag)
