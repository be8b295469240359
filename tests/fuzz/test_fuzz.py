"""The fuzzers can be run for long: each is a Hypothesis test that needs nothing else, and a finding is reported."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import core, given, is_hypothesis_test, settings
from hypothesis import strategies as some
from hypothesis.vendor import pretty

from tests.fuzz import __main__ as fuzz
from tests.fuzz import registry, rounds

SEEN: list[int] = []


@settings(max_examples=20, database=None)
@given(number=some.integers(min_value=0, max_value=1_000))
def holds(number: int) -> None:
    SEEN.append(number)


@settings(max_examples=20, database=None)
@given(number=some.integers(min_value=0, max_value=1_000))
async def holds_in_a_loop(number: int) -> None:
    SEEN.append(number)


@settings(max_examples=300, database=None)
@given(number=some.integers(min_value=0, max_value=1_000))
def is_small(number: int) -> None:
    assert number < 10


@pytest.mark.parametrize("name", registry.FUZZERS)
def test_a_fuzzer_is_a_hypothesis_test_without_fixtures(name: str) -> None:
    fuzzer = registry.FUZZERS[name]
    assert is_hypothesis_test(fuzzer)
    assert not inspect.signature(fuzzer).parameters


@pytest.mark.parametrize("fuzzer", [holds, holds_in_a_loop])
def test_every_example_is_counted(fuzzer: Callable[..., Any]) -> None:
    SEEN.clear()
    report = rounds.run(fuzzer, seconds=0)
    assert (report.examples, report.finding) == (len(SEEN), None)
    assert report.examples >= 20


def test_a_finding_is_printed_with_its_smallest_example_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Schemathesis, wherever it was used in this process before, has every value left out of what Hypothesis prints.
    monkeypatch.setattr(core, "RepresentationPrinter", pretty.RepresentationPrinter)
    monkeypatch.setattr(rounds, "load_profile", lambda: None)
    monkeypatch.setattr(registry, "FUZZERS", {"broken": is_small, "sound": holds})
    assert fuzz.main(["--minutes", "0"]) == 1
    printed = capsys.readouterr().out
    assert "number=10" in printed
    assert "sound: " in printed
    assert fuzz.main(["sound", "--minutes", "0"]) == 0
    assert "no finding" in capsys.readouterr().out


def test_fuzzers_run_beside_each_other_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["cursors", "json-tokens", "--minutes", "0", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(":")[0] for line in sorted(printed.splitlines())] == [
        "No fuzzer found anything",
        "cursors",
        "json-tokens",
    ]


def test_process_of_a_fuzzer_that_fails_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz._run_in_process("nothing-of-that-name", 0)
    assert "nothing-of-that-name: ended with 2" in capsys.readouterr().out


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        fuzz.main(["nothing-of-that-name"])
    assert "there is no fuzzer nothing-of-that-name" in capsys.readouterr().err
