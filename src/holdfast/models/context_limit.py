"""Recognizes the refusal of a call that is too long for the model's window, and finds the window in its words.

Providers agree neither on a code nor on a sentence. Each pattern names the servers that it was written for.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

LEAST_WINDOW: Final = 256
MOST_WINDOW: Final = 100_000_000
"""A number outside of these is not a window, but another number of the sentence."""

MAX_SEARCHED_CHARACTERS: Final = 10_000
"""The part of an error that is searched: more than any provider's sentence."""

_CODES: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Groq
        "exceed_context_size_error",  # llama.cpp
        "model_max_prompt_tokens_exceeded",  # Copilot
    }
)

_NUMBER: Final = r"(\d[\d,_]*)"

_SENTENCES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, OpenRouter, vLLM, DeepSeek: "maximum context length is 8192 tokens"
        rf"maximum (?:context|model|sequence) length (?:is|of) (?:only )?{_NUMBER}",
        # vLLM, LM Studio: "context length is only 4096 tokens"
        rf"context length (?:is|of) only {_NUMBER}",
        # llama.cpp: "exceeds the available context size (4096 tokens)"
        rf"exceeds the available context size(?: \({_NUMBER})?",
        # Anthropic, also through others: "prompt is too long: 205000 tokens > 200000 maximum"
        rf"prompt is too long(?:: [\d,]+ tokens > {_NUMBER} maximum)?",
        # Anthropic: "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"
        rf"exceeds? context limit(?:: [\d,]+ \+ [\d,]+ > {_NUMBER})?",
        # Copilot, Gemini: "prompt token count of 140652 exceeds the limit of 128000"
        rf"token count\b.{{0,40}} exceeds the (?:limit|maximum)\D{{0,40}}{_NUMBER}",
        # Mistral: "too large for model with 32768 maximum context length"
        rf"too large for model with {_NUMBER} maximum context length",
        # Bedrock: "Input is too long for requested model."
        r"input is too long for",
        # OpenAI's Responses: "Your input exceeds the context window of this model."
        r"exceeds? (?:the |this |your )?(?:model'?s? )?(?:maximum )?context (?:window|length|size)",
        r"reduce the length of (?:the |your )?(?:messages|input|prompt)",
    )
)


class ContextLimit(msgspec.Struct, frozen=True):
    """The refusal of a call that is too long."""

    window: int | None
    """In tokens, if the provider named it."""


def context_limit(error: Any) -> ContextLimit | None:
    """The limit that an error object or a sentence speaks of; None if it is about something else."""
    texts = [text[:MAX_SEARCHED_CHARACTERS] for text in _texts(error)]
    found = [match for text in texts for sentence in _SENTENCES if (match := sentence.search(text))]
    if not found and not _CODES.intersection(texts):
        return None
    if isinstance(error, dict) and (window := _window(error.get("n_ctx"))):  # llama.cpp
        return ContextLimit(window)
    return ContextLimit(next(filter(None, map(_window_in, found)), None))


def _texts(error: Any) -> Iterator[str]:
    """The codes and sentences of an error, also of the upstream provider's that OpenRouter quotes."""
    match error:
        case str():
            yield error
        case dict():
            values = (error.get(key) for key in ("code", "type", "message", "detail"))
            yield from (value for value in values if isinstance(value, str))
            match error.get("metadata"):
                case {"raw": str(raw)}:
                    yield raw
                case _:
                    pass
        case _:
            pass


def _window_in(match: re.Match[str]) -> int | None:
    number = match[1] if match.re.groups else None
    return _window(int(re.sub("[,_]", "", number)[:12])) if number else None


def _window(number: Any) -> int | None:
    return number if isinstance(number, int) and LEAST_WINDOW <= number <= MOST_WINDOW else None
