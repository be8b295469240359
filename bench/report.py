"""A report: everything that the runs of one benchmark gave, judged line by line. Pure.

`--json` writes a report. Judging it again needs its runs only, so that an old report follows the bars as they are now.
"""

from collections.abc import Mapping, Sequence

import msgspec

from bench.bars import MIN_RUNS, Judged, Line, judge
from bench.calibration import Machine
from bench.place import Measured
from bench.sections import selected


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the benchmark was asked for."""

    only: list[str] = []
    """The selected names; empty for every line."""
    quick: bool = False
    runs: int = MIN_RUNS
    strictness: float = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file that `--json` writes."""

    scope: Scope
    machine: Machine | None
    """The machine during these runs; None if nothing was measured."""
    lines: list[Judged]
    not_measured: list[str]
    unprepared: dict[str, str]
    """Probes that could not be run at all, and why."""
    bounded_not_measured: list[str]
    """Lines with a bar that the runs were to measure and did not."""
    runs: dict[str, list[Measured]]


def judge_all(
    runs: Mapping[str, Sequence[Measured]],
    unprepared: Mapping[str, str],
    *,
    scope: Scope,
    machine: Machine | None,
    reference: Machine,
) -> Report:
    lines = selected(scope.only)
    judged = [(line, _judged(line, runs, scope=scope, reference=reference)) for line in lines]
    return Report(
        scope=scope,
        machine=machine,
        lines=[found for _, found in judged if found is not None],
        not_measured=[line.what for line, found in judged if found is None],
        unprepared=dict(unprepared),
        bounded_not_measured=[line.name for line, found in judged if found is None and line.has_bar],
        runs={probe: list(measured) for probe, measured in runs.items()},
    )


def judge_again(report: Report, *, reference: Machine) -> Report:
    """The same runs against the lines and bars as they are now. A line that is newer than the report has no figure; the
    runs did not fail for that."""
    again = judge_all(report.runs, report.unprepared, scope=report.scope, machine=report.machine, reference=reference)
    return msgspec.structs.replace(again, bounded_not_measured=report.bounded_not_measured)


def why_partial(scope: Scope) -> str | None:
    """The reason why a run of this scope is not a full one; None if it is."""
    if scope.only:
        return f"the run measured only {', '.join(scope.only)}"
    if scope.quick:
        return "a quick run measures tiny sizes"
    if scope.runs < MIN_RUNS:
        return f"the bars are stated for {MIN_RUNS} runs, and there were {scope.runs}"
    if scope.strictness != 1:
        return f"the bars were made {scope.strictness:g} times as strict"
    return None


def _judged(line: Line, runs: Mapping[str, Sequence[Measured]], *, scope: Scope, reference: Machine) -> Judged | None:
    return judge(line, runs.get(line.probe, ()), reference=reference, strictness=scope.strictness)
