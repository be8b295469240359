"""`python -m tests.fuzz [NAME …] --minutes N`: runs fuzzers in turn, N minutes each. A finding exits with 1."""

import argparse
import sys
import traceback
from collections.abc import Sequence

from tests.fuzz import rounds

MINUTES = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    rounds.load_profile()
    from tests.fuzz.registry import FUZZERS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run fuzzers, one after another.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(FUZZERS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for each of them (default: {MINUTES:g})")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(FUZZERS):
        parser.error(f"there is no fuzzer {', '.join(sorted(unknown))}; there are {', '.join(FUZZERS)}")
    found = 0
    for name in dict.fromkeys(asked.names) or FUZZERS:
        report = rounds.run(FUZZERS[name], seconds=60 * asked.minutes)
        found += report.finding is not None
        print(
            f"{name}: {report.examples:,} examples in {report.seconds / 60:.1f} min "
            f"({report.examples_per_minute:,.0f} per minute), "
            + ("A FINDING:" if report.finding is not None else "no finding"),
            flush=True,
        )
        if report.finding is not None:
            traceback.print_exception(report.finding, file=sys.stdout)
    print(f"{found} of the fuzzers found something" if found else "No fuzzer found anything")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
