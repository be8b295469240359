"""Runs every campaign at full length, one after the other, and prints one table. `make verify` starts it.

Each step is a `make` target with a process of its own, whose output goes to `.verify/NAME.log`. A step that fails does
not end the run. The exit code is 1 if any step failed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
LOGS: Final = ROOT / ".verify"


class Step(msgspec.Struct, frozen=True):
    """One command of the run."""

    name: str
    command: tuple[str, ...]


class Finished(msgspec.Struct, frozen=True):
    """A step that has ended. `last_line` is the last line of its output: campaigns end with their count."""

    name: str
    exit_code: int
    seconds: float
    last_line: str

    @property
    def passed(self) -> bool:
        return self.exit_code == 0


TARGETS: Final = (
    "test",
    "crash",
    "crash-postgresql",
    "crash-control",
    "power-cut",
    "long-talk",
    "simulate",
    "simulate-stores",
    "simulate-control",
    "chaos",
    "fuzz",
    "bench",
)
"""The targets of a full run. All of them together take most of a day; `--only` selects."""

STEPS: Final = tuple(Step(target, ("make", "--no-print-directory", target)) for target in TARGETS)


def run(steps: Sequence[Step], logs: Path) -> list[Finished]:
    """Run the steps in order. A line on standard output announces each step and reports its end."""
    logs.mkdir(parents=True, exist_ok=True)
    finished = []
    for number, step in enumerate(steps, 1):
        log = logs / f"{step.name}.log"
        print(f"{number} of {len(steps)}: {step.name} … (output in {log})", flush=True)
        started = time.monotonic()
        with log.open("wb") as output:
            ended = subprocess.run(step.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
        ending = Finished(step.name, ended.returncode, time.monotonic() - started, _last_line(log))
        finished.append(ending)
        print(f"    {_verdict(ending)} after {ending.seconds:.0f} s: {ending.last_line}", flush=True)
    return finished


def table(finished: Sequence[Finished]) -> str:
    """One row per step: its name, the verdict, the time it took and its last line."""
    rows = [("step", "verdict", "seconds", "last line")]
    rows += [(ended.name, _verdict(ended), f"{ended.seconds:.0f}", ended.last_line) for ended in finished]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {seconds:>{widths[2]}}  {line}".rstrip()
        for name, verdict, seconds, line in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.verify", description="Run every campaign at full length.")
    names = ", ".join(TARGETS)
    parser.add_argument("--only", action="append", choices=TARGETS, metavar="NAME", help=f"a step: {names}")
    asked = parser.parse_args(arguments)
    finished = run([step for step in STEPS if not asked.only or step.name in asked.only], LOGS)
    print(f"\n{table(finished)}")
    failed = [ended.name for ended in finished if not ended.passed]
    print(f"\n{len(finished) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _verdict(ended: Finished) -> str:
    return "passed" if ended.passed else f"FAILED ({ended.exit_code})"


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


if __name__ == "__main__":
    sys.exit(main())
