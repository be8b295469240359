"""Messages of a conversation, and the receipts of messages that were sent."""

from typing import Any, Literal

import msgspec

from holdfast.events.compaction import CompactionError, CompactionMethod, CompactionTrigger
from holdfast.events.ids import MessageId, Position
from holdfast.events.inbox import ItemState
from holdfast.events.message import PageContext
from holdfast.protocol.file import MessageFile

# A conversation


class TextView(msgspec.Struct, frozen=True, kw_only=True, tag="text", gc=False):
    text: str


class ReasoningView(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning", gc=False):
    text: str


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call", gc=False):
    tool_call_id: str
    name: str
    arguments: str
    """The model's own text; not necessarily JSON."""


BlockView = TextView | ReasoningView | ToolCallView


class LogMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", gc=False):
    """An entry of a conversation, with its position in the log."""

    position: int
    time: int


class FromUser(LogMessage, frozen=True, tag="user"):
    """A message of a person."""

    message_id: str
    turn_id: str
    text: str
    delivery: str
    attachments: tuple[dict[str, Any], ...] = ()
    files: tuple[MessageFile, ...] = ()
    pinned: bool = False
    """The model keeps it word for word, whatever is compacted."""


class FromAssistant(LogMessage, frozen=True, tag="assistant"):
    """One answer of the model."""

    message_id: str
    blocks: tuple[BlockView, ...]
    model: str
    interrupted: bool
    duration_ms: int


class FromTool(LogMessage, frozen=True, tag="tool"):
    """The result of a call."""

    tool_call_id: str
    success: bool
    content: str
    error: str | None
    details: str
    simulated: bool
    duration_ms: int


class Failed(LogMessage, frozen=True, tag="error"):
    """Why a turn failed."""

    code: str
    message: str
    retryable: bool


class Info(LogMessage, frozen=True, tag="info"):
    """A line for people."""

    message: str
    level: str


class Ended(LogMessage, frozen=True, tag="turn_end"):
    """How a turn ended."""

    turn_id: str
    reason: Literal["completed", "stopped", "error", "interrupted"]
    duration_ms: int


class FromCompaction(LogMessage, frozen=True, tag="compaction"):
    """The place where a compaction ended: with the next call the model is sent `summary`, or only a note that the older
    part was left out (`cut`), in place of everything up to `up_to`. Readers still see all of it."""

    compaction_id: str
    success: bool
    method: CompactionMethod
    trigger: CompactionTrigger
    up_to: int
    summary: str
    kept: int
    """How many messages of people the model keeps word for word."""
    removed: int
    """How many messages the model is no longer sent."""
    tokens_before: int
    tokens_after: int
    error: CompactionError
    message: str
    """The reason of a failure, for people."""
    duration_ms: int


MessageView = FromUser | FromAssistant | FromTool | Failed | Info | Ended | FromCompaction


# Sending

DeliveryChoice = Literal["steer", "enqueue", "interrupt", "reject"]


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was taken out of the queue, with its options."""

    message_id: MessageId
    text: str
    context: PageContext | None = None
    mode: str = ""
    model: str | None = None
    thinking: int | None = None
    files: tuple[MessageFile, ...] = ()


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a message, readable again by its id."""

    message_id: MessageId
    item_key: str
    """The key of the message's inbox item."""
    state: ItemState
    delivery: str
    duplicate: bool = False
    """The message had been accepted before: this is the receipt of the first time."""
    while_running: bool = False
    """A turn was unfinished when the message was accepted."""
    waits_for_slot: bool = False
    """The message's turn starts when other turns of the same owner have ended."""
    head: Position | None = None
    """The log's head when the message was accepted: everything that comes of the message follows. None for a
    duplicate."""
    found_idle: bool = False
    """The message starts a turn: none was unfinished, and no message waited. False for a duplicate."""
    returned: tuple[str, ...] = ()
    """Texts that `interrupt` took out of the queue."""
    returned_messages: tuple[Returned, ...] = ()
    """The same messages, with their options."""
