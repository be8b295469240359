"""The cost of a call: pure, in whole microdollars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.cost import cost_of, priced, saved_by_cache
from holdfast.models.info import LongPrompt, TokenPrice, TokenRates
from holdfast.models.model import TokenUsage

RATES = TokenRates(input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000)
PRICE = TokenPrice(rates=RATES)
TOKENS = st.none() | st.integers(0, 10**9)


def test_each_kind_of_token_has_its_own_price() -> None:
    usage = TokenUsage(input_tokens=1_000, cache_read_tokens=600, cache_write_tokens=300, output_tokens=10)
    assert cost_of(usage, PRICE) == (100 * 3_000_000 + 600 * 300_000 + 300 * 3_750_000 + 10 * 15_000_000) / 10**6


def test_reasoning_is_output_and_costs_nothing_more() -> None:
    usage = TokenUsage(input_tokens=0, output_tokens=10, reasoning_tokens=8)
    assert cost_of(usage, PRICE) == 150


@pytest.mark.parametrize(("rate", "cost"), [(1, 0), (499_999, 0), (500_000, 1), (1_499_999, 1), (1_500_000, 2)])
def test_a_cost_is_rounded_to_the_nearest_microdollar(rate: int, cost: int) -> None:
    price = TokenPrice(rates=TokenRates(input=rate, output=0, cache_read=0, cache_write=0))
    assert cost_of(TokenUsage(input_tokens=1, output_tokens=0), price) == cost


def test_a_long_prompt_changes_the_price_of_all_tokens() -> None:
    double = TokenRates(input=6_000_000, output=30_000_000, cache_read=600_000, cache_write=7_500_000)
    price = TokenPrice(rates=RATES, long_prompts=(LongPrompt(over=200_000, rates=double),))
    assert cost_of(TokenUsage(input_tokens=200_000, output_tokens=1), price) == 200_000 * 3 + 15
    assert cost_of(TokenUsage(input_tokens=200_001, output_tokens=1), price) == 200_001 * 6 + 30


@pytest.mark.parametrize(
    ("usage", "price"),
    [
        (TokenUsage(input_tokens=1, output_tokens=1), None),
        (TokenUsage(input_tokens=1), PRICE),
        (TokenUsage(output_tokens=1), PRICE),
        (TokenUsage(), PRICE),
    ],
)
def test_a_cost_is_unknown_without_a_price_or_without_the_tokens(usage: TokenUsage, price: TokenPrice | None) -> None:
    assert cost_of(usage, price) is None
    assert priced(usage, price) == usage


def test_a_cost_that_the_provider_reported_stays() -> None:
    usage = TokenUsage(input_tokens=1_000, output_tokens=10, cost_microdollars=7)
    assert priced(usage, PRICE) == usage


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_a_cost_is_never_negative_whatever_a_provider_reports(
    fresh: int | None, read: int | None, written: int | None, output: int | None
) -> None:
    usage = TokenUsage(input_tokens=fresh, cache_read_tokens=read, cache_write_tokens=written, output_tokens=output)
    cost = cost_of(usage, PRICE)
    assert cost is None or cost >= 0


def test_a_cache_saves_the_difference_of_the_prices_less_what_writing_cost_more() -> None:
    price = TokenPrice(rates=TokenRates(input=3_000_000, output=1, cache_read=300_000, cache_write=3_750_000))
    assert saved_by_cache(1_000_000, 0, price) == 2_700_000
    assert saved_by_cache(1_000_000, 1_000_000, price) == 1_950_000
    assert saved_by_cache(0, 1_000_000, price) == -750_000
    assert saved_by_cache(1, 0, price) == 3, "rounded to the nearest"
    assert saved_by_cache(0, 0, price) == 0
