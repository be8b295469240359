"""`python -m tests.fuzz [NAME …] --minutes N`: runs fuzzers for N minutes each, `--jobs` at a time.

A finding exits with 1."""

import argparse
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz import rounds

MINUTES = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    rounds.load_profile()
    from tests.fuzz.registry import FUZZERS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run fuzzers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(FUZZERS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for each of them (default: {MINUTES:g})")
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many run at once, each in its own process (default: 1)"
    )
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(FUZZERS):
        parser.error(f"there is no fuzzer {', '.join(sorted(unknown))}; there are {', '.join(FUZZERS)}")
    names = list(dict.fromkeys(asked.names) or FUZZERS)
    if asked.jobs > 1:
        with ThreadPoolExecutor(asked.jobs) as pool:
            found = sum(pool.map(lambda name: _run_in_process(name, asked.minutes), names))
    else:
        found = sum(_report(name, rounds.run(FUZZERS[name], seconds=60 * asked.minutes)) for name in names)
    print(f"{found} of the fuzzers found something" if found else "No fuzzer found anything")
    return 1 if found else 0


def _report(name: str, report: rounds.Report) -> bool:
    """Print the report of a fuzzer. True: it found something."""
    print(
        f"{name}: {report.examples:,} examples in {report.seconds / 60:.1f} min "
        f"({report.examples_per_minute:,.0f} per minute), "
        + ("A FINDING:" if report.finding is not None else "no finding"),
        flush=True,
    )
    if report.finding is not None:
        traceback.print_exception(report.finding, file=sys.stdout)
    return report.finding is not None


def _run_in_process(name: str, minutes: float) -> bool:
    """Run a fuzzer in a process of its own. A process that fails in another way counts as a finding too."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--minutes", str(minutes)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    *report, _ = ended.stdout.splitlines() or [f"{name}: nothing was printed"]
    print(
        "\n".join(report if ended.returncode in (0, 1) else [f"{name}: ended with {ended.returncode}", ended.stdout]),
        flush=True,
    )
    return ended.returncode != 0


if __name__ == "__main__":
    raise SystemExit(main())
