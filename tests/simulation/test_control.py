"""The control: what a simulation is for is to find what is wrong, and so it must find what was made wrong."""

import sys

import pytest

from proof.simulation.campaign import CONTROL_SEEDS, main, seeds_until_caught, told
from proof.simulation.defects import DEFECTS, planted

KNOWN = {
    "trust is counted from the answer to a renewal": 2934,
    "the end of a task is told by everybody who sees it": 2789,
    "the readers of a run that is cancelled are told nothing": 1163,
    "the readers of a run that is cut off are told nothing": 818,
    "nobody is told that a session can be run nowhere": 583,
    "a compaction that a crash interrupted is left as it is": 496,
    "a session that is claimed again does not wait for its earlier tools": 423,
    "a permission that everybody declined stays open": 315,
    "a failed write is forgotten when its writer was cancelled": 254,
    "nobody is told of the end of a task": 241,
    "a turn is ended over a write that is under way": 199,
    "a lease is trusted past its expiry": 163,
    "an item of a newer release is taken for done": 96,
    "the end of a turn is a unit of its own": 80,
    "a second answer is accepted over the first": 48,
    "an edit is lost to a promotion that did not see it": 33,
    "a claim that its task did not give back is forgotten": 30,
    "a tool with an unknown outcome runs again": 22,
    "an attempt is written after its effect": 20,
    "a claim whose outcome was not heard is forgotten": 12,
    "an answer is accepted after a stop": 10,
    "a hint is believed although one is missing": 10,
    "a promoted item is consumed before its events": 9,
    "a session is run where its files are not": 7,
    "a stop that is meant for a turn that ended empties the queue": 7,
    "a stop ends whatever turn runs when it is heard": 7,
    "a write whose outcome is unknown is made again": 6,
}
"""A seed whose world shows the defect, where it is looked first. If the worlds have changed, all others follow it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS])
def test_a_planted_defect_is_found(name: str) -> None:
    first = KNOWN.get(name, 0)
    assert seeds_until_caught(name, [*range(first, CONTROL_SEEDS), *range(first)]) is not None


def code() -> dict[tuple[str, str], object]:
    """Everything that a defect could replace: the names of every loaded module of ours, and of the classes in them."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in ("holdfast", "proof")]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    owners = [*modules, *(found for found in classes if found.__module__.split(".")[0] in ("holdfast", "proof"))]
    return {(repr(owner), name): value for owner in owners for name, value in vars(owner).items()}


@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS])
def test_a_defect_is_gone_when_it_is_no_longer_planted(name: str) -> None:
    before = code()
    with planted(name):
        assert changed(before, code()) != []
    assert changed(before, code()) == []


def changed(before: dict[tuple[str, str], object], after: dict[tuple[str, str], object]) -> list[tuple[str, str]]:
    return [place for place, value in before.items() if after.get(place) is not value]


def test_a_failing_seed_is_reported_with_its_log_and_the_broken_promise(capsys: pytest.CaptureFixture[str]) -> None:
    defect = "segments outlive their message"
    found = seeds_until_caught(defect, range(CONTROL_SEEDS))
    assert found is not None
    seed = found[1].seed
    assert main(["--seed", str(seed), "--defect", defect]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("calls the model" in line for line in lines), "who did what"
    assert any(line.startswith("the log of s1") for line in lines)
    assert any(line.startswith(f"VIOLATION of {found[1].violations[0].invariant}") for line in lines)
    assert told(seed).violations == ()
