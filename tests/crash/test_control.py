"""The control of the crash campaign: a defect that it could not see would make its silence worth nothing."""

import pytest

from proof.crash.defects import DEFECTS, NONE
from tests.crash.command import campaign, uncaught

PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_every_planted_defect_is_caught(part: int) -> None:
    names = [defect.name for defect in DEFECTS if "sqlite" in defect.databases]
    assert uncaught(names[part::PARTS], "sqlite") == []


def test_a_healthy_runtime_is_not_taken_for_a_defect() -> None:
    assert uncaught([NONE.name], "sqlite") == [NONE.name]


def test_the_control_searches_for_a_defect_until_it_is_caught() -> None:
    name = "an attempt is written after its effect"
    ran = campaign("--control", "--defect", name)
    assert ran.status == 0, ran.output
    assert name in ran.output
    assert "NOT CAUGHT" not in ran.output


def test_a_defect_that_shows_nowhere_fails_the_control() -> None:
    """A healthy runtime stands in for it."""
    ran = campaign("--control", "--defect", NONE.name)
    assert ran.status == 1
    assert "NOT CAUGHT" in ran.output


def test_a_violation_says_what_is_wrong_and_how_to_see_it_again() -> None:
    ran = campaign(
        "--scenario",
        "tools",
        "--replay",
        "kill@0/tool:append_line:after#1",
        "--defect",
        "a tool with an unknown outcome runs again",
    )
    assert ran.status == 1
    assert "VIOLATION of effects_happen_once in tools: append_line" in ran.output
    assert "--replay 'kill@0/tool:append_line:after#1'" in ran.output
