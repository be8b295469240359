"""Chaos until each kind of blow has fallen once, and with a planted defect that it must see. `make chaos` is longer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from proof.chaos.killer import WEIGHTS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def chaos(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "proof.chaos", *arguments]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return ended.returncode, ended.stdout


def count(output: str, what: str) -> int:
    found = re.search(rf"^{re.escape(what)} +(\d+)$", output, re.MULTILINE)
    return int(found[1]) if found else 0


def test_nothing_is_lost_or_repeated_while_a_cluster_is_broken_again_and_again() -> None:
    status, output = chaos("--minutes", "0.5", "--sessions", "24", "--seed", "5")
    assert status == 0, output
    assert count(output, "violations") == 0
    assert count(output, "messages") > 50
    assert all(count(output, blow) > 0 for blow in WEIGHTS), output


def test_a_fence_that_is_missing_is_noticed() -> None:
    status, output = chaos("--control", "--minutes", "0.4", "--sessions", "40")
    assert status == 0, output
    assert "VIOLATION of one_owner_at_each_position" in output
    assert "commits are not fenced: caught" in output
