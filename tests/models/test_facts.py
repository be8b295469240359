"""The facts about a model from all sources: its family, the list of prices, its provider, the operator."""

import pytest

from holdfast.models.address import is_private
from holdfast.models.facts import info_of
from holdfast.models.info import DEFAULT_WINDOW, UNKNOWN, TokenPrice, TokenRates
from holdfast.models.stated_facts import StatedFacts

ANTHROPIC = "https://api.anthropic.com/v1"
OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
LOCAL = "http://127.0.0.1:11434/v1"
PRICE = TokenPrice(rates=TokenRates(input=1, output=2, cache_read=3, cache_write=4))


def test_a_model_that_nobody_knows_has_the_default_window_and_no_price() -> None:
    assert info_of("nobody-knows-it", "https://llm.example.org/v1") == UNKNOWN
    assert (UNKNOWN.window, UNKNOWN.price, UNKNOWN.is_known) == (DEFAULT_WINDOW, None, False)


def test_a_published_model_has_its_window_its_price_and_what_its_family_takes() -> None:
    info = info_of("claude-sonnet-5-5", ANTHROPIC)
    assert (info.window, info.max_output, info.is_known) == (1_000_000, 64_000, True)
    assert info.price is not None
    assert (info.takes_images, info.takes_tools, info.takes_thinking) == (True, True, True)


@pytest.mark.parametrize(
    ("model", "base_url", "takes"),
    [
        ("anthropic/claude-sonnet-5.5", OPENROUTER, True),
        ("anthropic/claude-3.5-haiku", OPENROUTER, True),
        ("openai/gpt-6.1-sol", OPENROUTER, False),
        ("claude-sonnet-5-5", ANTHROPIC, False),
        ("anthropic/claude-sonnet-5.5", LOCAL, False),
    ],
)
def test_claude_through_openrouter_takes_cache_marks(model: str, base_url: str, takes: bool) -> None:
    assert info_of(model, base_url).takes_cache_marks is takes


@pytest.mark.parametrize(
    ("model", "base_url", "thinks", "max_output"),
    [
        ("claude-3-5-haiku-latest", ANTHROPIC, False, 8_192),
        ("claude-3-haiku-20240307", ANTHROPIC, False, 4_096),
        ("claude-3-7-sonnet-latest", ANTHROPIC, True, 64_000),
        ("claude-opus-4-1-20250805", ANTHROPIC, True, 32_000),
        ("claude-opus-4-20250514", ANTHROPIC, True, 32_000),
        ("claude-opus-4-5", ANTHROPIC, True, 64_000),
        ("anthropic/claude-3.5-haiku", OPENROUTER, False, 8_192),
        ("gpt-4o-mini", OPENAI, False, 16_384),
        ("gpt-4.1", OPENAI, False, 32_768),
        ("gpt-6.1-sol", OPENAI, True, 128_000),
        ("o3", OPENAI, True, 100_000),
        ("openai/gpt-4o", OPENROUTER, False, 16_384),
    ],
)
def test_a_family_says_whether_its_models_think_and_how_much_they_write(
    model: str, base_url: str, thinks: bool, max_output: int
) -> None:
    info = info_of(model, base_url)
    assert (info.takes_thinking, info.max_output) == (thinks, max_output)


def test_an_answer_is_never_longer_than_the_window() -> None:
    assert info_of("claude-sonnet-5-5", ANTHROPIC, stated=StatedFacts(model="", window=9_000)).max_output == 9_000


def test_a_server_of_ones_own_has_the_default_window_whatever_its_models_are_called() -> None:
    """A local server may run a small model under a large one's name, and with a smaller window."""
    info = info_of("gpt-6.1-sol", LOCAL)
    assert (info.window, info.price, info.is_known) == (DEFAULT_WINDOW, None, False)


def test_what_the_operator_states_beats_what_the_provider_says_and_what_is_published() -> None:
    of_provider = StatedFacts(model="", window=50_000, max_output=5_000, images=False)
    stated = StatedFacts(model="", window=60_000, tools=False, thinking=False, cache_marks=True, price=PRICE)
    info = info_of("claude-sonnet-5-5", ANTHROPIC, of_provider=of_provider, stated=stated)
    assert (info.window, info.max_output, info.price) == (60_000, 5_000, PRICE)
    assert (info.takes_images, info.takes_tools, info.takes_thinking) == (False, False, False)
    assert info.takes_cache_marks
    assert info_of("x", LOCAL, stated=stated).is_known


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("http://localhost:1/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://10.1.2.3/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://box.local/v1", True),
        ("http://llm.svc.internal/v1", True),
        ("https://api.openai.com/v1", False),
        ("http://8.8.8.8/v1", False),
    ],
)
def test_an_address_on_this_machine_or_in_a_private_network_is_private(url: str, private: bool) -> None:
    assert is_private(url) is private
