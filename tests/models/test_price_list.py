"""The list of prices against the package that publishes it: it is read without an import, and says the same."""

import datetime
import subprocess
import sys
import warnings
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ClauseEquals, ClauseOr, ModelInfo, Provider

from holdfast.models.cost import cost_of
from holdfast.models.model import TokenUsage
from holdfast.models.price_list import find_entry
from holdfast.models.providers import PROVIDERS

TODAY = datetime.date(2026, 11, 19)
NOON = datetime.datetime(2026, 11, 19, 12, tzinfo=datetime.UTC)

USAGES = (
    TokenUsage(input_tokens=50_000, cache_read_tokens=30_000, cache_write_tokens=5_000, output_tokens=1_234),
    TokenUsage(input_tokens=300_001, cache_read_tokens=299_000, output_tokens=7),
)

BASE_URLS = {name: provider.base_url for name, provider in PROVIDERS.items()}


def names_of(model: ModelInfo) -> Iterator[str]:
    yield model.id
    clauses = model.match.or_ if isinstance(model.match, ClauseOr) else [model.match]
    yield from (clause.equals for clause in clauses if isinstance(clause, ClauseEquals))


def published(provider: Provider) -> Iterator[tuple[str, ModelInfo]]:
    """Every name that the provider's list has a model for, with that model."""
    for model in provider.models:
        for name in names_of(model):
            found = provider.find_model(name, all_providers=get_snapshot().providers)
            if found is not None:
                yield name, found


def expected_cost(model: ModelInfo, provider: Provider, usage: TokenUsage) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
        )
    price = model.calc_price(given, provider, genai_request_timestamp=NOON).total_price
    return int((price * 10**6).quantize(Decimal(1), ROUND_HALF_UP))


@pytest.mark.parametrize("name", BASE_URLS)
def test_each_published_model_has_the_window_and_the_price_that_the_package_gives(name: str) -> None:
    provider = next(each for each in get_snapshot().providers if each.id == name)
    priced = 0
    for model_name, model in published(provider):
        entry = find_entry(BASE_URLS[name], model_name, TODAY)
        assert entry is not None, model_name
        assert entry.window == model.context_window, model_name
        if entry.price is None:
            continue
        for usage in USAGES:
            assert cost_of(usage, entry.price) == expected_cost(model, provider, usage), model_name
        priced += 1
    assert priced > 20
    find_entry.cache_clear()


@pytest.mark.parametrize("name", BASE_URLS)
def test_the_default_model_of_each_provider_has_a_window_and_a_price(name: str) -> None:
    model = PROVIDERS[name].default_model.partition("/")[2]
    entry = find_entry(BASE_URLS[name], model, TODAY)
    assert entry is not None
    assert entry.price is not None
    assert entry.window is not None
    assert entry.window >= 1_000_000


def test_a_new_price_holds_from_its_first_day() -> None:
    before, after = (
        find_entry("https://api.anthropic.com/v1", "claude-opus-4-6", day) for day in (datetime.date(2026, 1, 1), TODAY)
    )
    assert before is not None
    assert before.price is not None
    assert after is not None
    assert after.price is not None
    assert before.price.long_prompts
    assert not after.price.long_prompts


def test_a_compact_date_in_a_name_is_understood() -> None:
    compact = find_entry("https://api.openai.com/v1", "gpt-5.2-20251211", TODAY)
    assert compact == find_entry("https://api.openai.com/v1", "gpt-5.2-2025-12-11", TODAY)
    assert compact is not None


def test_azure_has_the_prices_of_the_models_that_it_offers_for_openai() -> None:
    entry = find_entry("https://me.openai.azure.com/openai/v1", "gpt-6.1-sol", TODAY)
    assert entry is not None
    assert entry.price is not None


def test_at_an_unknown_address_a_model_has_its_window_but_no_price() -> None:
    entry = find_entry("https://gateway.example.org/v1", "claude-sonnet-5-5", TODAY)
    assert entry is not None
    assert (entry.window, entry.price) == (1_000_000, None)


@pytest.mark.parametrize("model", ["nobody-knows-it", "", "gpt-"])
def test_a_model_that_nobody_published_has_no_entry(model: str) -> None:
    assert find_entry("https://gateway.example.org/v1", model, TODAY) is None
    assert find_entry("https://openrouter.ai/api/v1", model, TODAY) is None


PROGRAM = """
import datetime, sys
from holdfast.models.price_list import find_entry
assert find_entry("https://api.anthropic.com/v1", "claude-sonnet-5-5", datetime.date(2026, 11, 19)) is not None
print(*sys.modules)
"""


def test_the_package_and_what_it_brings_are_never_imported() -> None:
    out = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert {"genai_prices", "pydantic", "pydantic_core", "httpx2", "aiohttp"} & set(out.split()) == set()


def test_data_in_another_shape_leaves_models_without_a_price(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.models.price_list.PACKAGE", "holdfast_has_no_such_package")
    find_entry.cache_clear()
    assert find_entry("https://api.anthropic.com/v1", "claude-sonnet-5-5", TODAY) is None
    assert "can't be read (ImportError): models have no price" in caplog.text
    find_entry.cache_clear()
