"""Runs the crash campaign as people do: in a process of its own, which has no threads and so may fork."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
