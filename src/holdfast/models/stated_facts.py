"""Facts about models that the operator states in a file, in TOML or JSON: one table for each model.

["openai/qwen3-coder"]
window = 65536
max_output = 16384
images = false
price = { input = 0.2, output = 0.8, cache_read = 0.02 }    # dollars for a million tokens
"""

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.models.info import TokenPrice, TokenRates
from holdfast.models.providers import PROVIDERS

MAX_FILE_BYTES: Final = 1_000_000
"""Thousands of models. The file is read whole, before anything starts."""

MAX_TOKENS: Final = 1_000_000_000
MAX_DOLLARS: Final = 1_000_000

FILE_ALLOWED: Final = "a file in TOML, or in JSON if its name ends with .json, with a table for each model"
TOKENS_ALLOWED: Final = f"a whole number of tokens, 1 to {MAX_TOKENS}"
SWITCH_ALLOWED: Final = "true or false"
DOLLARS_ALLOWED: Final = f"dollars for a million tokens, 0 to {MAX_DOLLARS}"
PRICE_ALLOWED: Final = "a table with input and output, and if cached tokens differ, cache_read and cache_write"

PREFIXES: Final = (*PROVIDERS, "copilot")


class StatedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that are stated about a model. None: as it is known otherwise."""

    model: str
    window: int | None = None
    max_output: int | None = None
    images: bool | None = None
    documents: bool | None = None
    tools: bool | None = None
    thinking: bool | None = None
    cache_marks: bool | None = None
    price: TokenPrice | None = None


def window_of(context: int | None, prompt: int | None, output: int | None) -> int | None:
    """The window of a model whose provider bounds the prompt as well, or only that; None if it states neither."""
    windows = [context, prompt + (output or 0) if prompt is not None else None]
    return min((window for window in windows if window is not None), default=None)


def tokens_in(value: object) -> int | None:
    """A number of tokens that a provider or a client states; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_TOKENS:
        return None
    return int(value)


class BadFacts(ValueError):
    """The file can't be used. `problem` continues a sentence about it."""

    def __init__(self, problem: str, *, allowed: str) -> None:
        super().__init__(f"{problem}. Allowed: {allowed}")
        self.problem = problem
        self.allowed = allowed


def read_stated_facts(path: Path) -> tuple[StatedFacts, ...]:
    """The facts in the file. Raises `BadFacts`, which names the model and the key."""
    tables = _decoded(path)
    if not isinstance(tables, dict):
        raise BadFacts("which holds no tables of models", allowed=FILE_ALLOWED)
    return tuple(_facts(model, table) for model, table in tables.items())


def _decoded(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadFacts(f"which can't be read ({error.strerror or error})", allowed=FILE_ALLOWED) from None
    if len(data) > MAX_FILE_BYTES:
        raise BadFacts("which is too large", allowed=f"at most {MAX_FILE_BYTES} bytes")
    is_json = path.suffix.lower() == ".json"
    try:
        return (msgspec.json if is_json else msgspec.toml).decode(data)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise BadFacts(f"which is not {kind} ({error})", allowed=FILE_ALLOWED) from None


def _facts(model: str, table: Any) -> StatedFacts:
    prefix, _, name = model.partition("/")
    if prefix not in PREFIXES or not name:
        names = ", ".join(f"{prefix}/NAME" for prefix in PREFIXES)
        raise BadFacts(f"where {_quoted(model)} is no model's name", allowed=names)
    if not isinstance(table, dict):
        raise BadFacts(f"where the model {model} has no table", allowed=FILE_ALLOWED)
    facts = StatedFacts(model=model, **{key: _read(model, key, value, KEYS) for key, value in table.items()})
    if facts.window is not None and facts.max_output is not None and facts.max_output > facts.window:
        problem = f"where max_output of the model {model} is {facts.max_output}, more than its window"
        raise BadFacts(problem, allowed=f"at most {facts.window}")
    return facts


class _Refused(Exception):
    """A value has the wrong kind, or is out of range. Its text says what is allowed."""


def _read(model: str, key: str, value: Any, readers: Mapping[str, Callable[[Any], Any]], within: str = "") -> Any:
    place = f"{within}{key} of the model {model}"
    if key not in readers:
        nearest = difflib.get_close_matches(key, readers, n=1)
        hint = f", which is perhaps meant to be {within}{nearest[0]}" if nearest else ""
        raise BadFacts(f"where {_quoted(key)} of the model {model} is no key{hint}", allowed=", ".join(readers))
    if key == "price":
        return _price(model, value)
    try:
        return readers[key](value)
    except _Refused as refused:
        raise BadFacts(f"where {place} is {_quoted(value)}", allowed=str(refused)) from None


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _tokens(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_TOKENS:
        raise _Refused(TOKENS_ALLOWED)
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refused(SWITCH_ALLOWED)
    return value


def _dollars(value: Any) -> int:
    """The price in microdollars for a million tokens."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DOLLARS:
        raise _Refused(DOLLARS_ALLOWED)
    return round(Decimal(repr(value)) * 1_000_000)


def _price(model: str, value: Any) -> TokenPrice:
    if not isinstance(value, dict):
        raise BadFacts(f"where price of the model {model} is {_quoted(value)}", allowed=PRICE_ALLOWED)
    found = {key: _read(model, key, each, PRICE_KEYS, within="price.") for key, each in value.items()}
    if "input" not in found or "output" not in found:
        raise BadFacts(f"where price of the model {model} is incomplete", allowed=PRICE_ALLOWED)
    fresh = found["input"]
    return TokenPrice(
        rates=TokenRates(
            input=fresh,
            output=found["output"],
            cache_read=found.get("cache_read", fresh),
            cache_write=found.get("cache_write", fresh),
        )
    )


KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "window": _tokens,
    "max_output": _tokens,
    "images": _switch,
    "documents": _switch,
    "tools": _switch,
    "thinking": _switch,
    "cache_marks": _switch,
    "price": _dollars,
}

PRICE_KEYS: Final = dict.fromkeys(("input", "output", "cache_read", "cache_write"), _dollars)
