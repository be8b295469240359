"""The table that a run ends with."""

import statistics
from collections.abc import Sequence

from bench.bars import Judged
from bench.calibration import Machine
from bench.figure import figure
from bench.place import Measured

_HEADINGS = ("line", "bar", "here", "median", "spread", "")


def print_table(
    lines: Sequence[Judged], not_measured: Sequence[str], *, runs: dict[str, list[Measured]], reference: Machine
) -> None:
    rows = [_HEADINGS, *(_row(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        cells = (
            cell.ljust(width) if column in (0, 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
    print()
    for what in not_measured:
        print(f"NOT MEASURED: {what}. This is not a pass.")
    print(_machine(runs, reference))


def _row(line: Judged) -> tuple[str, ...]:
    bar = "" if line.bar is None else figure(line.bar)
    median = f"{figure(line.median)} {_UNITS[line.unit]}"
    spread = f"± {figure(line.spread, like=line.median)}"
    return f"{line.what}  [{line.name}]", line.stated, bar, median, spread, line.verdict


_UNITS = {"times": "x   ", "ms": "ms  ", "us": "µs  ", "per s": "/s  ", "MB": "MB  ", "KB": "KB  ", "%": "%   "}


def _machine(runs: dict[str, list[Measured]], reference: Machine) -> str:
    every = [run for measured in runs.values() for run in measured]
    if not every:
        return "Nothing was measured."
    loop = statistics.median(run.calibration_ms for run in every)
    cpu = statistics.median(run.calibration_cpu_ms for run in every)
    p50 = statistics.median(run.commit_p50_ms for run in every)
    p99 = statistics.median(run.commit_p99_ms for run in every)
    return (
        f"Calibration loop {loop:.1f} ms, {cpu:.1f} ms of CPU (reference {reference.calibration_ms:.1f} and "
        f"{reference.calibration_cpu_ms:.1f} ms); "
        f"raw commit p50 {p50:.2f} ms, p99 {p99:.2f} ms. `here` is the bar at this machine's speed; "
        "a bar `on any machine` is a time that a person feels, and is not scaled."
    )
