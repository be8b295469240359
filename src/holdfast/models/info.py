"""The facts about a model that calls and sessions depend on."""

from typing import Final

import msgspec

DEFAULT_WINDOW: Final = 128_000
"""The window, in tokens, of a model that nobody knows: most models of today have at least this."""


class TokenRates(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of tokens, each in microdollars for a million tokens: $3 for a million is 3,000,000."""

    input: int
    output: int
    """Reasoning is output."""
    cache_read: int
    cache_write: int


class LongPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Other rates for all tokens of a call whose input has more than so many tokens."""

    over: int
    rates: TokenRates


class TokenPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model's calls."""

    rates: TokenRates
    long_prompts: tuple[LongPrompt, ...] = ()
    """From the smallest number of tokens to the largest."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one model, and what it takes."""

    window: int = DEFAULT_WINDOW
    """Input and output of a call together have at most this many tokens."""
    max_output: int | None = None
    """The longest answer in tokens; None if nobody knows."""
    takes_images: bool = True
    takes_documents: bool = False
    """PDFs. A server that does not know them refuses the whole call."""
    takes_tools: bool = True
    takes_thinking: bool = True
    takes_cache_marks: bool = False
    """Its chat completions take Anthropic's cache marks, as Claude's do through OpenRouter."""
    price: TokenPrice | None = None
    """The price of a call that the provider itself does not price; None if nobody knows."""
    is_known: bool = False
    """Whether these are facts about this model, and not defaults."""


UNKNOWN: Final = ModelInfo()
"""A model that nobody knows."""

FREE: Final = TokenPrice(rates=TokenRates(input=0, output=0, cache_read=0, cache_write=0))

BOUNDLESS: Final = ModelInfo(window=1_000_000_000, is_known=True, price=FREE)
"""A model that takes a conversation of any length, and costs nothing."""
