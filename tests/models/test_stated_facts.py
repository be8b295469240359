"""The operator's file of facts about models: what it may hold, and the sentence for each mistake."""

import json
from pathlib import Path

import pytest

from holdfast.models.info import TokenPrice, TokenRates
from holdfast.models.stated_facts import MAX_FILE_BYTES, BadFacts, StatedFacts, read_stated_facts

WHOLE = """
["openai/qwen3-coder"]
window = 65536
max_output = 16384
images = false
tools = true
thinking = false
cache_marks = false
price = { input = 0.2, output = 0.8, cache_read = 0.02 }

["openrouter/anthropic/claude-x"]
window = 200000
"""

FACTS = (
    StatedFacts(
        model="openai/qwen3-coder",
        window=65_536,
        max_output=16_384,
        images=False,
        tools=True,
        thinking=False,
        cache_marks=False,
        price=TokenPrice(
            rates=TokenRates(input=200_000, output=800_000, cache_read=20_000, cache_write=200_000),
        ),
    ),
    StatedFacts(model="openrouter/anthropic/claude-x", window=200_000),
)


def problem_of(folder: Path, text: str | bytes, name: str = "models.toml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadFacts) as raised:
        read_stated_facts(path)
    return str(raised.value)


def test_a_file_may_be_toml(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(WHOLE)
    assert read_stated_facts(path) == FACTS


def test_a_file_may_be_json(tmp_path: Path) -> None:
    price = {"input": 0.2, "output": 0.8, "cache_read": 0.02}
    first = {"window": 65_536, "max_output": 16_384, "images": False, "tools": True, "thinking": False}
    tables = {
        "openai/qwen3-coder": {**first, "cache_marks": False, "price": price},
        "openrouter/anthropic/claude-x": {"window": 200_000},
    }
    path = tmp_path / "models.json"
    path.write_text(json.dumps(tables))
    assert read_stated_facts(path) == FACTS


def test_an_empty_file_states_nothing(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text("")
    assert read_stated_facts(path) == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("window = 0", "where window of the model openai/x is 0. Allowed: a whole number of tokens, 1 to"),
        ("window = -5", "where window of the model openai/x is -5. Allowed: a whole number of tokens"),
        ("window = 1.5", "where window of the model openai/x is 1.5. Allowed: a whole number of tokens"),
        ("window = true", "where window of the model openai/x is True. Allowed: a whole number of tokens"),
        ('window = "128k"', "where window of the model openai/x is '128k'. Allowed: a whole number of tokens"),
        ("images = 1", "where images of the model openai/x is 1. Allowed: true or false"),
        (
            "windw = 5",
            "where 'windw' of the model openai/x is no key, which is perhaps meant to be window. Allowed: win",
        ),
        ("price = 3", "where price of the model openai/x is 3. Allowed: a table with input and output"),
        ("price = { input = 3 }", "where price of the model openai/x is incomplete. Allowed: a table with input and"),
        (
            "price = { input = 3, output = -1 }",
            "where price.output of the model openai/x is -1. Allowed: dollars for a million tokens, 0 to 1000000",
        ),
        ("price = { input = nan, output = 1 }", "where price.input of the model openai/x is nan. Allowed: dollars"),
        ("price = { input = inf, output = 1 }", "where price.input of the model openai/x is inf. Allowed: dollars"),
        (
            "price = { input = 1, output = 1, batch = 1 }",
            "where 'batch' of the model openai/x is no key. Allowed: input, output, cache_read, cache_write",
        ),
        ("window = 10\nmax_output = 11", "where max_output of the model openai/x is 11, more than its window. Allowed"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_model_and_the_key(tmp_path: Path, line: str, problem: str) -> None:
    assert problem_of(tmp_path, f'["openai/x"]\n{line}\n').startswith(problem)


@pytest.mark.parametrize("name", ["gpt-x", "demo", "mistral/x", "openai/", ""])
def test_a_table_that_is_no_models_is_refused(tmp_path: Path, name: str) -> None:
    said = problem_of(tmp_path, f'["{name}"]\nwindow = 5\n')
    assert (
        said
        == f"where {name!r} is no model's name. Allowed: anthropic/NAME, openai/NAME, openrouter/NAME, copilot/NAME"
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "m.toml",
            "window = ",
            "which is not TOML (Invalid value (at end of document)). Allowed: a file in",
        ),
        ("m.toml", b"\xff\xfe", "which is not TOML ("),
        ("m.json", "{", "which is not JSON ("),
        ("m.json", "[1]", "which holds no tables of models"),
        ("m.json", '{"openai/x": 5}', "where the model openai/x has no table"),
        ("m.json", '{"a":' * 100_000, "which is not JSON ("),
        ("m.toml", b" " * (MAX_FILE_BYTES + 1), "which is too large. Allowed: at most 1000000 bytes"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, text: str | bytes, problem: str) -> None:
    assert problem_of(tmp_path, text, name).startswith(problem)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match="which can't be read \\(No such file or directory\\)"):
        read_stated_facts(tmp_path / "nothing.toml")


def test_prices_are_exact(tmp_path: Path) -> None:
    """A tenth of a dollar is no binary fraction."""
    path = tmp_path / "models.toml"
    path.write_text('["openai/x"]\nprice = { input = 0.1, output = 0.000001 }\n')
    (facts,) = read_stated_facts(path)
    assert facts.price is not None
    assert (facts.price.rates.input, facts.price.rates.output) == (100_000, 1)
