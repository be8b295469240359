"""The long session: a short one, and its control. `make long-talk` is the long one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from proof.crash.trial import Database
from proof.long_talk.defects import DEFECTS, NONE
from proof.long_talk.script import MODE_STATED, groups, is_gated, is_planted, planted, words

ROOT = Path(__file__).parents[2]

TURNS = 60
KILLS = 3


def long_talk(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proof.long_talk", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_said_is_lost_and_no_gate_is_weaker_after_compactions_and_kills(database: Database) -> None:
    ran = long_talk("--turns", str(TURNS), "--kills", str(KILLS), "--database", database)
    assert ran.returncode == 0, ran.stdout
    found = re.search(r"(\d+) turns, (\d+) compactions, (\d+) kills .* (\d+) recalled, 0 violations", ran.stdout)
    assert found is not None, ran.stdout
    turns, compactions, kills, recalled = map(int, found.groups())
    assert (turns, kills, recalled) == (TURNS, KILLS, TURNS // 2)
    assert compactions >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS])
def test_a_planted_defect_of_compaction_is_caught(name: str) -> None:
    ran = long_talk("--control", "--defect", name)
    assert ran.returncode == 0, ran.stdout
    assert "NOT CAUGHT" not in ran.stdout


@pytest.mark.slow
def test_a_healthy_session_is_not_accused() -> None:
    ran = long_talk("--control", "--defect", NONE.name)
    assert ran.returncode == 1, ran.stdout
    assert "NOT CAUGHT" in ran.stdout


def test_every_planted_sentence_is_in_one_message_and_one_group() -> None:
    turns = 1000
    marked = [turn for turn in range(turns) if is_planted(turn)]
    assert len(marked) == 500
    assert [turn for group in groups(turns) for turn in group] == marked
    assert all(planted(turn) in words(turn) and not is_gated(turn) for turn in marked)
    assert not any(MODE_STATED in words(turn) for turn in range(turns))
