"""The JSON shapes of an answer of Anthropic's Messages, whole or streamed."""

from typing import Any

import msgspec

from holdfast.models.chat_shapes import MAX_COUNT
from holdfast.models.model import TokenUsage


class ThinkingDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class MessageUsage(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: ThinkingDetails | None = None

    def updated(self, later: "MessageUsage") -> "MessageUsage":
        """The usage with the figures that a later event corrects: each is a total."""
        fields = MessageUsage.__struct_fields__
        return MessageUsage(
            *(getattr(self, name) if getattr(later, name) is None else getattr(later, name) for name in fields)
        )


class StopDetails(msgspec.Struct):
    explanation: str | None = None


class BlockDelta(msgspec.Struct, gc=False):
    """A piece of a block, or the end of the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class MessageBlock(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class WholeMessage(msgspec.Struct):
    """The whole message, or its beginning."""

    type: str = ""
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: MessageUsage | None = None
    error: Any = None
    choices: Any = None
    output: Any = None


class MessageEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int | None = None
    delta: BlockDelta | None = None
    content_block: msgspec.Raw = msgspec.Raw(b"{}")
    message: WholeMessage | None = None
    usage: MessageUsage | None = None
    error: Any = None
    choices: Any = None


event_in = msgspec.json.Decoder(MessageEvent).decode
message_in = msgspec.json.Decoder(WholeMessage).decode
block_in = msgspec.json.Decoder(MessageBlock).decode


def token_usage(usages: list[MessageUsage]) -> TokenUsage:
    """The usage of an answer that took these calls. Our input tokens include those of the cache; theirs do not."""
    return TokenUsage(
        input_tokens=_sum(usages, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        output_tokens=_sum(usages, "output_tokens"),
        cache_read_tokens=_sum(usages, "cache_read_input_tokens"),
        cache_write_tokens=_sum(usages, "cache_creation_input_tokens"),
        reasoning_tokens=_reasoning(usages),
        context_tokens=_context(usages[-1:]) if len(usages) > 1 else None,
    )


def _context(last: list[MessageUsage]) -> int | None:
    """The input and output of the last call."""
    return _sum(last, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


def _sum(usages: list[MessageUsage], required: str, *more: str) -> int | None:
    """The sum of plausible figures; None if no call has the first of them."""
    found = [figure for usage in usages if (figure := _count(getattr(usage, required))) is not None]
    if not found:
        return None
    return sum(found) + sum(_count(getattr(usage, name)) or 0 for usage in usages for name in more)


def _reasoning(usages: list[MessageUsage]) -> int | None:
    details = [usage.output_tokens_details for usage in usages if usage.output_tokens_details is not None]
    found = [figure for each in details if (figure := _count(each.thinking_tokens)) is not None]
    return sum(found) if found else None


def _count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_COUNT else None
