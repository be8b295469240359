"""The control of the crash campaign: a defect that it could not see would make its silence worth nothing."""

import pytest

from proof.crash.defects import DEFECTS, NONE
from tests.crash.command import campaign


@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS if "sqlite" in defect.databases])
def test_a_planted_defect_is_caught(name: str) -> None:
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
