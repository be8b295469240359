"""The JSON shapes of a chat completion, whole or streamed, and a lenient decoder for malformed ones."""

import json
import math
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.models.lenient_decoder import mended, parse
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
    index: int | None = None
    delta: ChatDelta | None = None
    message: ChatDelta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cost: float | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None


class Completion(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    error: Any = None
    type: Any = None
    output: Any = None
    """Only answers of other APIs have a type or an output."""


decode = msgspec.json.Decoder(Completion).decode


def decode_leniently(payload: bytes) -> Completion:
    """The completion without its malformed parts. Raises ValueError if the payload is not JSON."""
    value = parse(payload)
    _normalize(value)
    return mended(value, Completion)


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
    prompt, completion = usage.prompt_tokens_details or PromptDetails(), usage.completion_tokens_details
    # OpenAI, OpenRouter and most others; Anthropic's names, which some proxies keep; DeepSeek; Moonshot.
    read = (prompt.cached_tokens, usage.cache_read_input_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens)
    written = (prompt.cache_write_tokens, prompt.cache_creation_tokens, usage.cache_creation_input_tokens)
    return TokenUsage(
        input_tokens=token_count(usage.prompt_tokens),
        output_tokens=token_count(usage.completion_tokens),
        cache_read_tokens=next(filter(None, map(token_count, read)), token_count(prompt.cached_tokens)),
        cache_write_tokens=next(filter(None, map(token_count, written)), token_count(prompt.cache_write_tokens)),
        reasoning_tokens=token_count(completion.reasoning_tokens if completion else None),
        cost_microdollars=microdollars(usage.cost),
    )


def token_count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_COUNT else None


def microdollars(dollars: float | None) -> int | None:
    """The amount in microdollars, rounded half to even from the decimal digits that the provider sent."""
    if dollars is None or not math.isfinite(dollars):
        return None
    return token_count(round(Decimal(str(dollars)) * 1_000_000))


def _normalize(completion: Any) -> None:
    """Give the unusual forms of a few values their usual type."""
    match completion:
        case {"choices": list(choices)}:
            for choice in choices:
                match choice:
                    case {"delta": dict(delta)} | {"message": dict(delta)}:
                        _normalize_delta(delta)
                    case _:
                        pass
        case _:
            pass
    match completion:
        case {"usage": {"cost": str(cost)} as usage}:
            usage["cost"] = _number(cost)
        case _:
            pass


def _normalize_delta(delta: dict[str, Any]) -> None:
    """Some providers send the text as a list of typed parts, and the arguments of a call as an object."""
    if isinstance(parts := delta.get("content"), list):
        texts = (part.get("text") for part in parts if isinstance(part, dict))
        delta["content"] = "".join(text for text in texts if isinstance(text, str))
    for call in calls if isinstance(calls := delta.get("tool_calls"), list) else ():
        match call:
            case {"function": {"arguments": dict(arguments)} as function}:
                function["arguments"] = json.dumps(arguments, ensure_ascii=False)
            case _:
                pass


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
