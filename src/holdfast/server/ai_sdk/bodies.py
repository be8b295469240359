"""Bodies and queries of requests to the AI SDK surface, and the notice of a message that waits."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.events.ids import random_id
from holdfast.events.session import ClientTool
from holdfast.events.tool import MAX_RESULT_JSON_BYTES
from holdfast.protocol.message import DeliveryChoice
from holdfast.server.ai_sdk.chunks import DataQueuedChunk
from holdfast.server.ai_sdk.intent import ChatText, ClientMessage, Id, Intent, Trigger, intent_of
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.chosen_id import ChosenId
from holdfast.server.errors import Invalid
from holdfast.server.json_bounds import JsonBounds
from holdfast.server.message_options import MessageOptions

MAX_BODY_BYTES: Final = MAX_RESULT_JSON_BYTES
"""A client sends its whole conversation each time. Only its end is read, which may be the result of a client's tool."""

BODY_BOUNDS: Final = JsonBounds(values=100_000)
"""Most of the conversation is skipped unread."""

MAX_CLIENT_TOOLS: Final = 128


class ChatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """A JSON schema."""


class ChatBody(MessageOptions, frozen=True, kw_only=True):
    """A body as the `ai` package sends it (`messages`, `trigger`, `messageId`), or simply a `text`. Other fields, which
    applications add, are ignored."""

    id: ChosenId | None = None
    """The session; at /v1/chat only."""
    messages: tuple[ClientMessage, ...] = ()
    trigger: Trigger = "submit-message"
    answers_or_edits: Id | None = msgspec.field(name="messageId", default=None)
    """The message to edit, to answer again, or whose tools are answered."""
    text: str | None = None
    message_id: ChosenId | None = None
    """With `text`: the id of the message. The same id again is the same message."""
    delivery: DeliveryChoice = "steer"
    """How the message meets a running turn."""
    tools: Annotated[tuple[ChatTool, ...], Meta(max_length=MAX_CLIENT_TOOLS)] | None = None
    """The tools that the client runs from now on. Left out: its tools stay."""

    def intent(self) -> Intent:
        if self.text is None:
            return intent_of(self.messages, self.trigger, self.answers_or_edits)
        if self.messages:
            raise Invalid("invalid", "Give `messages` or `text`, not both.")
        return ChatText(random_id() if self.message_id is None else self.message_id, self.text)

    def client_tools(self) -> tuple[ClientTool, ...]:
        return tuple(
            ClientTool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in self.tools or ()
        )


class ChatQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    release: Annotated[int, Meta(ge=6, le=7)] = 6
    """7 for clients of that release: they get chunks that others do not understand."""

    def known(self) -> Release:
        return 7 if self.release == 7 else 6


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    turns: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Only turns that start before this position."""


class QueuedNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The message was accepted, and waits."""

    message_id: str
    buffer_length: int
    """The number of messages in the queue."""
    max_buffer_length: int
    turn_in_flight: bool

    def chunk(self) -> DataQueuedChunk:
        """The same for a client that reads a stream."""
        return DataQueuedChunk(
            {
                "messageId": self.message_id,
                "bufferLength": self.buffer_length,
                "maxBufferLength": self.max_buffer_length,
                "turnInFlight": self.turn_in_flight,
            }
        )
