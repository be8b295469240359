"""The windows and prices of models, from the data that the package genai-prices brings. It makes no call.

The package itself is not imported: it brings pydantic and a second HTTP client, fifteen megabytes in every process for
a table. Its data module is run instead, with functions in place of its classes that keep only the model in question.
"""

import builtins
import datetime
import importlib.util
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

import msgspec

from holdfast.models.info import LongPrompt, TokenPrice, TokenRates

PACKAGE: Final = "genai_prices"

MAX_REMEMBERED: Final = 256
"""Models whose entries one process remembers: a search takes some milliseconds."""

UNREADABLE: Final = (ImportError, OSError, SyntaxError, NameError, TypeError, ValueError, AttributeError, LookupError)
"""Errors of data in another shape than the pinned one."""

NEITHER_IN_NOR_OUT: Final = frozenset({"requests_kcount", "output_reasoning_mtok"})
"""Prices that a call may have beside those of its input and output: the whole price is unknown then."""

log = logging.getLogger(__name__)


class ListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The published facts about a model."""

    window: int | None
    price: TokenPrice | None


@lru_cache(MAX_REMEMBERED)
def find_entry(base_url: str, model: str, today: datetime.date) -> ListEntry | None:
    """The entry of a model at this address; None if there is none.

    At an address of no known provider, a model with a provider's name has that provider's window, but not its price.
    """
    names = dict.fromkeys((model.lower(), _with_dashes(model.lower())))
    try:
        code = _data_code()
        found = (_Search(base_url, name, today).run(code) for name in names)
        return next((entry for entry in found if entry is not None), None)
    except UNREADABLE as error:
        log.warning("the prices of genai-prices can't be read (%s): models have no price", type(error).__name__)
        return None


def _data_code() -> CodeType:
    """The data module, from its bytecode if that is cached. Finding a package does not import it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(PACKAGE)
    path = Path(spec.submodule_search_locations[0]) / "data.py"
    code = SourceFileLoader(f"{PACKAGE}.data", str(path)).get_code(f"{PACKAGE}.data")
    if code is None:
        raise ImportError(PACKAGE)
    return code


def _with_dashes(model: str) -> str:
    """The name with `-20251211` written as `-2025-12-11`: routers write it so, and the list the other way."""
    return re.sub(r"-(20\d\d)(\d\d)(\d\d)(?=-|:|$)", r"-\1-\2-\3", model)


class _Entries(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one provider that have the name."""

    provider: str
    found: list[ListEntry]
    is_at_address: bool
    is_named: bool
    """The name looks like one of its models."""
    fallback: tuple[str, ...]
    """Other providers whose models it offers."""


class _Search:
    """The search for one model: what the data module calls in place of its classes."""

    def __init__(self, base_url: str, name: str, today: datetime.date) -> None:
        self._base_url = base_url
        self._name = name
        self._today = today

    def run(self, code: CodeType) -> ListEntry | None:
        shapes = SimpleNamespace(**self._shapes())

        def import_(name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0) -> Any:
            return shapes if level else builtins.__import__(name, globals, locals, names, level)

        namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": import_}}
        exec(code, namespace)
        return _chosen(namespace["providers"])

    def _shapes(self) -> dict[str, Callable[..., Any]]:
        name = self._name
        return {
            "ClauseEquals": lambda *, equals: name == equals,
            "ClauseStartsWith": lambda *, starts_with: name.startswith(starts_with),
            "ClauseEndsWith": lambda *, ends_with: name.endswith(ends_with),
            "ClauseContains": lambda *, contains: contains in name,
            "ClauseRegex": lambda *, regex: re.search(regex, name) is not None,
            "ClauseOr": lambda *, or_: any(or_),
            "ClauseAnd": lambda *, and_: all(and_),
            "Provider": self._provider,
            "ModelInfo": self._model,
            "ModelPrice": dict,
            "TieredPrices": lambda *, base, tiers: (base, tiers),
            "Tier": lambda *, start, price: (start, price),
            "ConditionalPrice": lambda *, prices, constraint=True: (prices, constraint),
            "StartDateConstraint": lambda *, start_date: start_date <= self._today,
            # A call has the standard price, although it may be cheaper at some hours.
            "TimeOfDateConstraint": lambda **ignored: False,
            "PriceVariant": _ignore,
            "UsageExtractor": _ignore,
            "UsageExtractorMapping": _ignore,
            "ArrayMatch": _ignore,
        }

    def _provider(
        self,
        *,
        id: str,
        api_pattern: str,
        models: list[ListEntry | None],
        model_match: bool | None = None,
        fallback_model_providers: Iterable[str] | None = None,
        **ignored: Any,
    ) -> _Entries:
        return _Entries(
            provider=id,
            found=[entry for entry in models if entry is not None],
            is_at_address=re.match(api_pattern, self._base_url) is not None,
            is_named=bool(model_match),
            fallback=tuple(fallback_model_providers or ()),
        )

    def _model(
        self, *, match: bool, prices: Any = None, context_window: int | None = None, **ignored: Any
    ) -> ListEntry | None:
        if not match:
            return None
        window = context_window if context_window is not None and context_window > 0 else None
        return ListEntry(window=window, price=_price(_standard(prices)))


def _ignore(**ignored: Any) -> None:
    return None


def _chosen(providers: list[_Entries]) -> ListEntry | None:
    here = next((entries for entries in providers if entries.is_at_address), None)
    if here is not None:
        others = [entries for name in here.fallback for entries in providers if entries.provider == name]
        return next((entry for entries in (here, *others) for entry in entries.found), None)
    named = next((entries for entries in providers if entries.is_named), None)
    if named is None or not named.found:
        return None
    return msgspec.structs.replace(named.found[0], price=None)


def _standard(prices: Any) -> Mapping[str, Any]:
    """The prices of today: those of the last condition that holds, or else the first."""
    if not isinstance(prices, list):
        return prices or {}
    holding = [found for found, holds in prices if holds]
    return holding[-1] if holding else prices[0][0] if prices else {}


def _price(prices: Mapping[str, Any]) -> TokenPrice | None:
    if "input_mtok" not in prices or "output_mtok" not in prices or NEITHER_IN_NOR_OUT & set(prices):
        return None
    starts = {start for price in prices.values() if isinstance(price, tuple) for start, _ in price[1]}
    return TokenPrice(
        rates=_rates(prices, 0),
        long_prompts=tuple(LongPrompt(over=start, rates=_rates(prices, start + 1)) for start in sorted(starts)),
    )


def _rates(prices: Mapping[str, Any], input_tokens: int) -> TokenRates:
    """The rates of a call with so much input. Cached tokens without a price of their own cost as much as others."""
    fresh = prices["input_mtok"]
    return TokenRates(
        input=_microdollars(fresh, input_tokens),
        output=_microdollars(prices["output_mtok"], input_tokens),
        cache_read=_microdollars(prices.get("cache_read_mtok", fresh), input_tokens),
        cache_write=_microdollars(prices.get("cache_write_mtok", fresh), input_tokens),
    )


def _microdollars(price: Any, input_tokens: int) -> int:
    if isinstance(price, tuple):
        base, tiers = price
        over = [(start, dearer) for start, dearer in tiers if input_tokens > start]
        price = max(over)[1] if over else base
    if not isinstance(price, Decimal):
        raise TypeError("a price is not a decimal")
    return round(price * 1_000_000)
