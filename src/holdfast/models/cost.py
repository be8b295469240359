"""The cost of a call, from its usage and the price of its model. Pure; integers only."""

from typing import Final

import msgspec

from holdfast.models.info import TokenPrice, TokenRates
from holdfast.models.model import TokenUsage

MILLION: Final = 1_000_000


def priced(usage: TokenUsage, price: TokenPrice | None) -> TokenUsage:
    """The usage with its cost. A cost that the provider reported stays."""
    if usage.cost_microdollars is not None:
        return usage
    cost = cost_of(usage, price)
    return usage if cost is None else msgspec.structs.replace(usage, cost_microdollars=cost)


def cost_of(usage: TokenUsage, price: TokenPrice | None) -> int | None:
    """The cost in microdollars, rounded to the nearest; None without a price or without the figures it needs."""
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    rates = _rates_for(price, usage.input_tokens)
    read = usage.cache_read_tokens or 0
    written = usage.cache_write_tokens or 0
    fresh = max(0, usage.input_tokens - read - written)
    cost = (
        fresh * rates.input + read * rates.cache_read + written * rates.cache_write + usage.output_tokens * rates.output
    )
    return (cost + MILLION // 2) // MILLION


def saved_by_cache(read_tokens: int, written_tokens: int, price: TokenPrice) -> int:
    """How much less calls cost because their provider read so many tokens of their input from its cache, after it wrote
    so many into it: in microdollars, at the rates of calls of usual length. Negative if too little was read again."""
    rates = price.rates
    saved = read_tokens * (rates.input - rates.cache_read) - written_tokens * (rates.cache_write - rates.input)
    return (saved + MILLION // 2) // MILLION


def dearest(price: TokenPrice, input_tokens: int) -> tuple[int, int]:
    """The most that an input of that size costs, in microdollars, and what a million tokens of the answer cost."""
    rates = _rates_for(price, input_tokens)
    return -(-input_tokens * max(rates.input, rates.cache_write) // MILLION), rates.output


def _rates_for(price: TokenPrice, input_tokens: int) -> TokenRates:
    rates = price.rates
    for long_prompt in price.long_prompts:
        if input_tokens > long_prompt.over:
            rates = long_prompt.rates
    return rates
