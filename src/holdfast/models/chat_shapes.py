"""The JSON shapes of a chat completion, whole or streamed, and a lenient decoder for malformed ones."""

import json
import math
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.events.codec import without_surrogates
from holdfast.models.model import TokenUsage

MAX_COUNT = 2**53
"""The largest plausible number of tokens or microdollars. A larger one is an error of the provider, and neither a
database nor a browser holds it exactly."""


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class ChatToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class ChatDelta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Any = None
    tool_calls: list[ChatToolCall] | None = None


class Choice(msgspec.Struct, gc=False):
    delta: ChatDelta | None = None
    message: ChatDelta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cost: float | None = None


class Completion(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(Completion).decode


def decode_leniently(payload: bytes) -> Completion:
    """The completion without its malformed parts. Raises ValueError if the payload is not JSON."""
    try:
        return _mend(without_surrogates(json.loads(payload.decode("utf-8", "replace"), strict=False)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def detail_text(entry: Any) -> str | None:
    """The text of one entry of `reasoning_details`; "" if it has no text to show, None if it is malformed."""
    match entry:
        case {"type": "reasoning.text", "text": str(text)}:
            return text
        case {"type": "reasoning.summary", "summary": str(text)}:
            return text
        case {"type": "reasoning.encrypted"} | {"type": "reasoning.text", "text": None} | {"signature": str()}:
            return ""
        case _:
            return None


def token_usage(usage: ChatUsage) -> TokenUsage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return TokenUsage(
        input_tokens=_count(usage.prompt_tokens),
        output_tokens=_count(usage.completion_tokens),
        cache_read_tokens=_count(prompt.cached_tokens if prompt else None),
        reasoning_tokens=_count(completion.reasoning_tokens if completion else None),
        cost_microdollars=_microdollars(usage.cost),
    )


def _count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_COUNT else None


def _microdollars(dollars: float | None) -> int | None:
    """The amount in microdollars, rounded half to even from the decimal digits that the provider sent."""
    if dollars is None or not math.isfinite(dollars):
        return None
    return _count(round(Decimal(str(dollars)) * 1_000_000))


def _mend(value: Any) -> Completion:
    """A completion from any JSON value, without its malformed parts."""
    if not isinstance(value, dict):
        return Completion()
    choices = [_mend_choice(choice) for choice in _objects(value.get("choices"))]
    return Completion(choices, _mend_usage(value.get("usage")), value.get("error"))


def _mend_choice(choice: dict[str, Any]) -> Choice:
    delta, message = choice.get("delta"), choice.get("message")
    return Choice(
        _mend_delta(delta) if isinstance(delta, dict) else None,
        _mend_delta(message) if isinstance(message, dict) else None,
        _text(choice.get("finish_reason")),
    )


def _mend_delta(delta: dict[str, Any]) -> ChatDelta:
    return ChatDelta(
        content=_parts_text(delta.get("content")),
        refusal=_text(delta.get("refusal")),
        reasoning=_text(delta.get("reasoning")),
        reasoning_content=_text(delta.get("reasoning_content")),
        reasoning_details=delta.get("reasoning_details"),
        tool_calls=[_mend_tool_call(call) for call in _objects(delta.get("tool_calls"))],
    )


def _mend_tool_call(call: dict[str, Any]) -> ChatToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        return ChatToolCall(_integer(call.get("index")), _text(call.get("id")))
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ChatToolCall(
        _integer(call.get("index")),
        _text(call.get("id")),
        Function(_text(function.get("name")), _text(arguments)),
    )


def _mend_usage(usage: Any) -> ChatUsage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return ChatUsage(
        _integer(usage.get("prompt_tokens")),
        _integer(usage.get("completion_tokens")),
        PromptDetails(_integer(prompt.get("cached_tokens"))) if isinstance(prompt, dict) else None,
        CompletionDetails(_integer(completion.get("reasoning_tokens"))) if isinstance(completion, dict) else None,
        _number(usage.get("cost")),
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _parts_text(content: Any) -> str | None:
    """The text of the content, which some providers send as a list of typed parts."""
    if not isinstance(content, list):
        return _text(content)
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
