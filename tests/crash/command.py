"""Runs the crash campaign as people do: in a process of its own, which has no threads and so may fork."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proof.crash.trial import Database

ROOT = Path(__file__).parents[2]

KILLS = re.compile(r"^(\d+) kills, (\d+) violations$", re.MULTILINE)


class Ran(NamedTuple):
    status: int
    output: str
    kills: int


def campaign(*arguments: str, jobs: int = 1) -> Ran:
    """The command, to its end. Without a last line that counts the kills there were none."""
    command = [sys.executable, "-m", "proof.crash", "--jobs", str(jobs), *arguments]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    counted = KILLS.search(ended.stdout)
    return Ran(ended.returncode, ended.stdout, int(counted[1]) if counted else 0)


def uncaught(names: Sequence[str], database: Database) -> list[str]:
    """The planted defects that the campaign does not catch: neither where they are known to show, nor when the control
    searches for them."""
    command = [sys.executable, "-m", "tests.crash.known_trials", "--database", database, *names]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    missed = ended.stdout.splitlines()
    assert set(missed) <= set(names), ended.stdout
    return [name for name in missed if campaign("--control", "--database", database, "--defect", name).status != 0]
