"""The seam between the scripted server and the protocols that it speaks.

A protocol reads a request into the neutral conversation, and writes the pieces of a scripted answer as frames of its
own stream. The server does the rest: keys, pauses, failures, and the accounting of the prefix cache.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from holdfast.models.model import Chunk, ContextMessage, TokenUsage
from holdfast.models.prefix_cache import RequestPart

RefusalKind = Literal[
    "invalid", "unauthorized", "rate_limited", "too_large", "context_exceeded", "overloaded", "unavailable"
]


class CallRefused(Exception):
    """The server refuses the call. Each protocol writes it in its own shape."""

    def __init__(
        self, kind: RefusalKind, message: str, *, status: int = 400, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class ServedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request in neutral form."""

    model: str
    conversation: tuple[ContextMessage, ...]
    streams: bool = False
    reports_usage: bool = True
    """Whether a stream ends with the usage."""
    parts: tuple[RequestPart, ...] = ()
    """Everything that the model reads, in order: tools, system text, messages."""
    cache_key: str = ""
    needs_marks: bool = False
    """Whether the provider caches nothing without marks."""
    max_tokens: int | None = None
    """The longest answer that the caller allows; the window has to hold it as well."""
    may_pause: bool = False
    """Whether the protocol has pauses."""
    resumed: str | None = None
    """The text of the paused answer that this call continues; None if it begins an answer."""
    shows_reasoning: bool = True
    """Whether the caller lets the model think."""

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


class ServedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is answered with."""

    pieces: tuple[Chunk, ...]
    reason: str
    """Of its end: a reason of `Finished`, or `pause`."""
    usage: TokenUsage


class AnswerFrames(msgspec.Struct, frozen=True, kw_only=True):
    """A streamed answer: its opening is sent at once, then one frame for each piece, then the closing."""

    opening: bytes = b""
    pieces: tuple[bytes, ...]
    closing: bytes


class ServedProtocol(Protocol):
    """One protocol of the scripted server."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    @property
    def path(self) -> str:
        """The path of a call, below the base URL."""
        ...

    @property
    def malformed(self) -> bytes:
        """An answer that is not JSON."""
        ...

    @property
    def malformed_frame(self) -> bytes:
        """An event of a stream whose data is not JSON."""
        ...

    def key(self, headers: Mapping[str, str]) -> str:
        """The key that the caller sent; empty if there is none."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> ServedCall:
        """The call. Raises `CallRefused`."""
        ...

    def frames(self, call: ServedCall, answer: ServedAnswer) -> AnswerFrames:
        """The answer as a stream."""
        ...

    def whole(self, call: ServedCall, answer: ServedAnswer) -> dict[str, Any]:
        """The answer as one object."""
        ...

    def error(self, refusal: CallRefused) -> dict[str, Any]:
        """The body of a refusal."""
        ...

    def error_frame(self, refusal: CallRefused) -> bytes:
        """An error in the middle of a stream."""
        ...

    def too_long(self, call: ServedCall, window: int) -> str:
        """The provider's own words for a call that does not fit the window."""
        ...
