"""Events about messages: what people typed, what the model answered, and what became of the call."""

from typing import Any, Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import MessageId, ToolCallId, TurnId

Delivery = Literal["idle", "queued", "steering"]
"""How a message met the session: it was idle, the message waited for its own turn, or it joined a running one."""


SealCause = Literal["crash", "provider error"]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="text"):
    text: str


class ReasoningBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag="reasoning"):
    text: str
    duration_ms: int = 0
    """From its first piece to what came after it; 0 where nobody measured, as of a message that was cut."""


class ToolCallBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="tool_call"):
    tool_call_id: ToolCallId
    name: str
    arguments: str
    """Exactly as the model wrote them; not necessarily valid JSON."""


Block = TextBlock | ReasoningBlock | ToolCallBlock
BlockKind = Literal["text", "reasoning", "tool_call"]


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A picture that the model is shown."""

    media_type: str
    data: bytes


class PageContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Where the person was who wrote a message. The model is told; people are not shown it in the conversation."""

    url: str = ""
    content: str = ""

    def as_text(self) -> str:
        lines = [f"[Page URL: {self.url}]"] if self.url else []
        return "\n".join([*lines, "[Page content]", self.content] if self.content else lines)


class UserMessage(Body, frozen=True, tag="user.message"):
    """What a person typed. `added` is what the model gets before it (date, files, context); readers never see it."""

    message_id: MessageId
    turn_id: TurnId
    content: str
    delivery: Delivery
    model_text: str = ""
    """What the model is told instead of `content`, where people are shown something shorter."""
    added: str = ""
    images: tuple[Image, ...] = ()
    attachments: tuple[dict[str, Any], ...] = ()
    """What was attached, as the client described it, without its bytes; what the model gets of it is in `added` and
    `images`."""
    agent_mode: str = ""
    model: str | None = None
    """Whom its turn asks from here on, instead of the session's model."""
    thinking: int | None = None
    """How long the model may think in its turn from here on, instead of what the session says."""


class AssistantMessage(Body, frozen=True, tag="assistant.message"):
    """One model call's answer, its blocks in the order in which they came."""

    message_id: MessageId
    blocks: tuple[Block, ...]
    model: str = ""
    finish_reason: str = ""
    interrupted: bool = False
    """A crash, a stop or a provider's error cut it: what readers had seen is kept as it was."""
    duration_ms: int = 0


class Sealed(Body, frozen=True, tag="holdfast.sealed"):
    """The cut message before it is closed. The call is made again, as the message `next_message_id`."""

    message_id: MessageId
    next_message_id: MessageId
    cause: SealCause


NoteReason = Literal["interrupted", "empty answer", "repeated call", "last round", "stopped"]


class Noted(Body, frozen=True, tag="holdfast.noted"):
    """A user-role line for the model only: people did not write it and do not see it."""

    text: str
    reason: NoteReason


class Usage(Body, frozen=True, tag="assistant.usage"):
    """What a model call used. An unknown figure is None, never 0."""

    message_id: MessageId
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_microdollars: int | None = None
    attempt: int = 1
    duration_ms: int = 0


class CallFailed(Body, frozen=True, tag="model.call_failure"):
    """A model call failed. When a retry makes sense it is made again, as attempt `attempt + 1`."""

    message_id: MessageId
    attempt: int
    error_code: str
    message: str
    retryable: bool
    status_code: int | None = None
    retry_after_ms: int | None = None
