"""A seed plays the same wherever and whenever it is played: otherwise what it found could not be looked at."""

import os
import subprocess
import sys

import pytest

from proof.simulation.campaign import main, told

SCRIPT = """
import sys
noise = [object() for _ in range(int(sys.argv[1]))]
from proof.simulation.campaign import told
for seed in range(40, 60):
    print("\\n".join(told(seed).trace))
"""


def played(hash_seed: str, noise: str) -> bytes:
    """The traces of some seeds, from a process with other hashes and other addresses."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    asked = [sys.executable, "-c", SCRIPT, noise]
    return subprocess.run(asked, env=environment, stdout=subprocess.PIPE, check=True, timeout=300).stdout


def test_the_same_seed_has_the_same_trace_byte_for_byte() -> None:
    first = played("1", "0")
    assert first.count(b"the log of") >= 20
    assert played("2", "12345") == first


def test_earlier_runs_do_not_change_a_run() -> None:
    alone = told(7).trace
    told(8)
    assert told(7).trace == alone


def test_seeds_differ() -> None:
    assert len({told(seed).trace for seed in range(5)}) == 5


def test_a_range_of_seeds_is_played_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "6", "--start", "3", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 seeds, 0 with violations"
