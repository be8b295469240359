"""Events about messages: those of people, the answers of the model, and the outcome of each model call."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.events.body import Body
from holdfast.events.ids import FileId, MessageId, ToolCallId, TurnId
from holdfast.events.role import RoleBounds

Delivery = Literal["idle", "queued", "steering"]
"""How a message reached the session: while it was idle, from the queue with a turn of its own, or by steering a running
turn."""


SealCause = Literal["crash", "provider error"]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="text", gc=False):
    text: str


class ReasoningBlock(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag="reasoning", gc=False
):
    text: str
    duration_ms: int = 0
    """From its first piece to the next block; 0 if not measured, as in a message that was cut."""
    opaque: str = ""
    """The provider's own data about this block, as JSON: a signature, encrypted content, numbered details. It is sent
    back to the same provider and model, unmodified, and shown to no one."""


class ToolCallBlock(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="tool_call", gc=False):
    tool_call_id: ToolCallId
    name: str
    arguments: str
    """Exactly as the model wrote them; not necessarily valid JSON."""


Block = TextBlock | ReasoningBlock | ToolCallBlock
BlockKind = Literal["text", "reasoning", "tool_call"]


PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types of the images that models take."""

PDF: Final = "application/pdf"

MAX_PICTURE_BYTES: Final = 5_000_000
"""Providers refuse larger images, and an image is sent again with every later call."""

MAX_SHOWN_BYTES: Final = 10_000_000
"""What the model is shown of the files of one message."""


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """An image that the model is shown, or a PDF, which is a series of images to it."""

    media_type: str
    data: bytes


class AttachedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """A file as a message has it. Its content is not in the log."""

    file_id: FileId
    name: str
    media_type: str
    size: int

    @property
    def is_picture(self) -> bool:
        return self.media_type in PICTURES and self.size <= MAX_PICTURE_BYTES

    def as_line(self) -> str:
        return f"- {self.name} ({self.media_type}, {self.size:,} bytes), file_id: {self.file_id}"


def shown_files(files: Iterable[AttachedFile]) -> tuple[AttachedFile, ...]:
    """Those of a message's files that the model is shown, and not only told of: pictures and PDFs, the first of them
    that have room."""
    shown: list[AttachedFile] = []
    left = MAX_SHOWN_BYTES
    for file in files:
        if (file.is_picture or file.media_type == PDF) and 0 < file.size <= left:
            shown.append(file)
            left -= file.size
    return tuple(shown)


def attached_files_text(files: Sequence[AttachedFile]) -> str:
    """What the model is told of a message's files."""
    if not files:
        return ""
    told = "The tool read_attached_file reads the text of a file."
    return "\n".join(("[Attached files]", *(file.as_line() for file in files), told))


class PageContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """The page that a person was on when writing a message. The model reads it; the conversation does not show it."""

    url: str = ""
    content: str = ""

    def as_text(self) -> str:
        lines = [f"[Page URL: {self.url}]"] if self.url else []
        return "\n".join([*lines, "[Page content]", self.content] if self.content else lines)


class UserMessage(Body, frozen=True, tag="user.message"):
    """A message of a person. The model gets `added` (date, files, context) before it; readers never see that."""

    message_id: MessageId
    turn_id: TurnId
    content: str
    delivery: Delivery
    model_text: str = ""
    """The text for the model instead of `content`, if people are shown a shorter one."""
    added: str = ""
    images: tuple[Image, ...] = ()
    attachments: tuple[dict[str, Any], ...] = ()
    """The attachments as the client described them, without their bytes; the model's part of them is in `added` and
    `images`."""
    files: tuple[AttachedFile, ...] = ()
    agent_mode: str = ""
    model: str | None = None
    """The model of the rest of the turn, instead of the session's."""
    thinking: int | None = None
    """The thinking budget of the rest of the turn in tokens, instead of the session's."""
    bounds: RoleBounds | None = None
    """The bounds of its sender's role: they also hold for turns that tasks of this turn start. None: the sender may use
    anything."""


class AssistantMessage(Body, frozen=True, tag="assistant.message"):
    """The answer of one model call, its blocks in the order of arrival."""

    message_id: MessageId
    blocks: tuple[Block, ...]
    model: str = ""
    finish_reason: str = ""
    reasoning_source: str = ""
    """The provider and model that take the opaque parts of its reasoning back; empty if it has none."""
    interrupted: bool = False
    """A crash, a stop or a provider's error cut the message; it keeps all the text that readers had seen."""
    duration_ms: int = 0


def without_opaque(body: Body) -> Body:
    """The body as readers get it: what only its provider can read is left out of its reasoning."""
    if not isinstance(body, AssistantMessage) or not body.reasoning_source:
        return body
    blocks = (replace(block, opaque="") if isinstance(block, ReasoningBlock) else block for block in body.blocks)
    return replace(body, blocks=tuple(blocks), reasoning_source="")


class Sealed(Body, frozen=True, tag="holdfast.sealed"):
    """Closes the cut message `message_id`. The model call is made again, as the message `next_message_id`."""

    message_id: MessageId
    next_message_id: MessageId
    cause: SealCause


NoteReason = Literal["interrupted", "empty answer", "repeated call", "last round", "stopped"]


class Noted(Body, frozen=True, tag="holdfast.noted"):
    """A note of the runtime to the model, in the user role: people neither wrote it nor see it."""

    text: str
    reason: NoteReason


class Usage(Body, frozen=True, tag="assistant.usage"):
    """The token usage and cost of a model call. An unknown figure is None, never 0."""

    message_id: MessageId
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    """The part of the input tokens that the provider read from its cache."""
    cache_write_tokens: int | None = None
    """The part of the input tokens that the provider wrote into its cache."""
    reasoning_tokens: int | None = None
    cost_microdollars: int | None = None
    attempt: int = 1
    duration_ms: int = 0
    context_tokens: int | None = None
    """The size of the context after the answer, if that is not the sum of input and output: the provider paused the
    answer, and several calls were made for it."""


class CallFailed(Body, frozen=True, tag="model.call_failure"):
    """A model call failed. If it is retryable it is made again, as attempt `attempt + 1`."""

    message_id: MessageId
    attempt: int
    error_code: str
    message: str
    retryable: bool
    status_code: int | None = None
    retry_after_ms: int | None = None
    window: int | None = None
    """The model's window in tokens, if the provider named it when it refused the call as too long."""
