"""What is sent to the AI SDK surface: by its clients, or by hand."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.events.ids import random_id
from holdfast.events.session import ClientTool
from holdfast.events.tool import MAX_RESULT_JSON_BYTES
from holdfast.server.ai_sdk.chunks import DataQueued
from holdfast.server.ai_sdk.sent import Id, Meant, Trigger, UiMessage, Words, meant
from holdfast.server.errors import Invalid
from holdfast.server.http.endpoint import ChosenId
from holdfast.server.http.message_options import MessageOptions
from holdfast.server.json_bounds import JsonBounds
from holdfast.server.operations import DeliveryChoice

MAX_BODY_BYTES: Final = MAX_RESULT_JSON_BYTES
"""A client sends its whole conversation each time, of which only the end is looked at: that may be the result of one of
its tools."""

BODY_BOUNDS: Final = JsonBounds(values=100_000)
"""Most of the conversation is passed over unread."""

MAX_CLIENT_TOOLS: Final = 128


class ClientToolGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """A JSON schema."""


class ChatBody(MessageOptions, frozen=True, kw_only=True):
    """As the `ai` package sends it (`messages`, `trigger`, `messageId`), or simply a `text`. Whatever else an
    application adds is ignored."""

    id: ChosenId | None = None
    """The session; at /v1/chat only."""
    messages: tuple[UiMessage, ...] = ()
    trigger: Trigger = "submit-message"
    answers_or_edits: Id | None = msgspec.field(name="messageId", default=None)
    """The message that is edited, answered again, or whose tools are answered."""
    text: str | None = None
    message_id: ChosenId | None = None
    """With `text`: the message's own id. Sent again under it, it is the same message."""
    delivery: DeliveryChoice = "steer"
    """What becomes of a message that comes while a turn runs."""
    tools: Annotated[tuple[ClientToolGiven, ...], Meta(max_length=MAX_CLIENT_TOOLS)] | None = None
    """The tools that the client runs, from now on. Left out: those that it has."""

    def meant(self) -> Meant:
        if self.text is None:
            return meant(self.messages, self.trigger, self.answers_or_edits)
        if self.messages:
            raise Invalid("invalid", "Give `messages` or `text`, not both.")
        return Words(random_id() if self.message_id is None else self.message_id, self.text)

    def client_tools(self) -> tuple[ClientTool, ...]:
        return tuple(
            ClientTool(name=found.name, description=found.description, parameters=found.parameters)
            for found in self.tools or ()
        )


class ChatQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    release: Annotated[int, Meta(ge=6, le=7)] = 6
    """7 for clients that are of that release, and may be told more than all of them understand."""


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    turns: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Only turns that start before this position."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The message was accepted, and waits."""

    message_id: str
    buffer_length: int
    """How many messages wait now."""
    max_buffer_length: int
    turn_in_flight: bool

    def chunk(self) -> DataQueued:
        """The same for whoever reads a stream."""
        return DataQueued(
            {
                "messageId": self.message_id,
                "bufferLength": self.buffer_length,
                "maxBufferLength": self.max_buffer_length,
                "turnInFlight": self.turn_in_flight,
            }
        )
