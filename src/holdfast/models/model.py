"""The seam to language models: the request of a call, the chunks that it streams, and its errors.

A model streams batches: all the chunks of one network read, so that the cost is per read and not per token.
"""

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from holdfast.events.context import AssistantTurn as AssistantTurn
from holdfast.events.context import ContextMessage as ContextMessage
from holdfast.events.context import Reasoning as Reasoning
from holdfast.events.context import SystemText as SystemText
from holdfast.events.context import ToolOutcome as ToolOutcome
from holdfast.events.context import ToolSpec as ToolSpec
from holdfast.events.context import ToolUse as ToolUse
from holdfast.events.context import UserText as UserText
from holdfast.models.info import ModelInfo

EACH = 200
"""The fixed cost of encoding a message, in characters."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of one call. The same state always gives the same request, byte for byte once encoded."""

    messages: tuple[ContextMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    stream: bool = True
    reasoning_effort: str | None = None
    thinking: int | None = None
    """The thinking budget in tokens; 0 switches thinking off, None leaves it open. It takes precedence over
    `reasoning_effort`."""
    headers: dict[str, str] = {}
    """Headers of this call alone. They may hold secrets."""
    cache_key: str = ""
    """The same for every call of a conversation: providers that keep their caches apart route calls by it."""
    cache_anchor: int | None = None
    """The index of a message whose end stays the same for many calls: a provider that caches up to marked places has a
    mark there as well as at the last message. None: only at the last message."""
    marks_cache: bool = True
    """Whether to mark places for the provider's cache, and to send `cache_key`."""
    window: int | None = None
    """The model's window as its session found it out; None: as far as the session knows, it is that of `Model.info`."""
    tokens: int = 0
    """About how many tokens the call has, if its session knows that better than by the size; 0 if it does not."""

    def size(self) -> int:
        """The approximate number of characters to send."""
        return sum(_size(message) for message in self.messages)

    def __repr__(self) -> str:
        return f"ModelRequest(messages={len(self.messages)}, tools={len(self.tools)}, headers={sorted(self.headers)})"


def _size(message: ContextMessage) -> int:
    match message:
        case SystemText(text):
            return EACH + len(text)
        case UserText(text, images) | ToolOutcome(_, text, images):
            return EACH + len(text) + sum(len(image.data) for image in images)
        case AssistantTurn(text, tool_calls, reasoning):
            written = len(text) + sum(EACH + len(use.arguments) for use in tool_calls)
            return EACH + written + sum(len(piece.text) + len(piece.opaque) for piece in reasoning)


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


class ReasoningEnd(msgspec.Struct, frozen=True):
    """The end of a block of reasoning, with the provider's own data about it. Without any `ReasoningDelta` before it,
    the block has nothing that people can read."""

    opaque: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. The first piece of an index has the id and the name; the arguments follow in pieces."""

    index: int
    arguments: str = ""
    tool_call_id: str = ""
    name: str = ""


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage that the provider reported; None for figures that it left out."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    """The part of `input_tokens` that was read from the provider's cache."""
    cache_write_tokens: int | None = None
    """The part of `input_tokens` that was written into the provider's cache."""
    reasoning_tokens: int | None = None
    cost_microdollars: int | None = None
    context_tokens: int | None = None
    """Input and output of the last call, if the answer took several, whose figures are added up above."""


class Finished(msgspec.Struct, frozen=True):
    reason: Literal["stop", "length", "tool_calls", "content_filter", "other"]


Chunk = TextDelta | ReasoningDelta | ReasoningEnd | ToolCallDelta | TokenUsage | Finished

ErrorCode = Literal[
    "model_unreachable",
    "model_timeout",
    "model_cut",
    "model_rate_limited",
    "model_unavailable",
    "model_unauthorized",
    "model_refused",
    "model_context_exceeded",
    "model_garbage",
    "files_unavailable",
    "model_failed",
]


class ModelError(Exception):
    """A call failed. `retryable`: the same call may succeed later."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.window = window
        """The model's window in tokens, if the provider named it: with `model_context_exceeded`."""


class Model(Protocol):
    """A language model. Closing the generator of `stream` ends the call at once."""

    @property
    def name(self) -> str:
        """The model's name in the log and in the ledger."""
        ...

    @property
    def reasoning_source(self) -> str:
        """Identifies the provider and the model: opaque reasoning is sent back only to where it came from."""
        ...

    @property
    def info(self) -> ModelInfo:
        """The facts about the model, as far as they are known."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        """Make the call. Raises `ModelError` if the answer is not complete."""
        ...
