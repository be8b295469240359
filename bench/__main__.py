"""`python -m bench`: runs every probe in turn, several times over, and prints a table. A missed bar exits with 1."""

import argparse
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import cluster, processes
from bench.bars import LINES, MIN_RUNS, Judged, Line, judge
from bench.calibration import REFERENCE, Reference, reference
from bench.cluster import Servers
from bench.place import FULL, QUICK, Measured, Place, Size
from bench.table import print_table

WORKPLACE = processes.ROOT / ".bench"
"""On the file system of the working directory: how fast it syncs is the point."""

PREPARED = frozenset({"cold_open", "long_session", "waiting", "http_peers", "cluster_claims", "page_scroll"})
"""Probes whose runs share something that takes long to make."""

SECTIONS = ("copilot", "http", "cluster", "page")
"""Probes that belong together, by the beginning of their names."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    lines: list[Judged]
    not_measured: list[str]
    unprepared: dict[str, str]
    """Probes that could not be run at all, and why."""
    bounded_not_measured: list[str]
    """Lines with a bar that no run could measure where all of them can be."""
    runs: dict[str, list[Measured]]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    lines = [line for line in LINES if not asked.only or names_of(line) & set(asked.only)]
    size = QUICK if asked.quick else FULL
    started = time.monotonic()
    try:
        probes = sorted({line.probe for line in lines}, key=_order)
        runs, unprepared = run_all(probes, runs=asked.runs, size=size, peers=asked.peers)
    except processes.ProbeFailed as failed:
        print(f"Could not be measured: {failed}", file=sys.stderr)
        return 2
    report = judge_all(lines, runs, unprepared, strictness=asked.strictness)
    print_table(report.lines, report.not_measured, runs=runs, reference=reference())
    for probe, why in unprepared.items():
        print(f"COULD NOT BE PREPARED: {probe}. Its lines count as missed. {why}")
    print(f"{asked.runs} runs in {time.monotonic() - started:.0f} s.")
    if asked.quick or asked.runs < MIN_RUNS:
        print(f"A quick look: the bars are stated for {MIN_RUNS} runs at full size.")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if asked.reference:
        _keep_reference(runs)
    return (
        1 if unprepared or report.bounded_not_measured or any(line.verdict == "MISSED" for line in report.lines) else 0
    )


def run_all(
    probes: Sequence[str], *, runs: int, size: Size, peers: Path
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Every probe once, then all of them again: a slow minute of the machine then slows each of them a little. Second,
    the probes that could not be prepared, and why: the others are measured all the same."""
    measured: dict[str, list[Measured]] = {probe: [] for probe in probes}
    with _places(size, peers, with_servers=any(probe.startswith("cluster_") for probe in probes)) as place:
        unprepared = _prepare(probes, place)
        for run in range(runs):
            for probe in (probe for probe in probes if probe not in unprepared):
                _say(f"run {run + 1} of {runs}: {probe} …")
                here = _at(place, probe, run=run)
                measured[probe].append(processes.measure(probe, here))
                shutil.rmtree(here.folder)
    _say("")
    return measured, unprepared


def _prepare(probes: Sequence[str], place: Place) -> dict[str, str]:
    """Those that could not be, and the last line of what was said about it."""
    unprepared: dict[str, str] = {}
    for probe in probes:
        if probe in PREPARED:
            _say(f"preparing {probe} …")
            try:
                processes.prepare(probe, _at(place, probe, run=0))
            except processes.ProbeFailed as failed:
                unprepared[probe] = str(failed).strip().splitlines()[-1]
    return unprepared


def judge_all(
    lines: Sequence[Line], runs: dict[str, list[Measured]], unprepared: dict[str, str], *, strictness: float
) -> Report:
    kept = reference()
    judged = [(line, judge(line, runs[line.probe], reference=kept, strictness=strictness)) for line in lines]
    return Report(
        lines=[found for _, found in judged if found is not None],
        not_measured=[line.what for line, found in judged if found is None],
        unprepared=unprepared,
        bounded_not_measured=[
            line.name for line, found in judged if found is None and line.has_bar and sys.platform == "linux"
        ],
        runs=runs,
    )


@contextmanager
def _places(size: Size, peers: Path, *, with_servers: bool) -> Iterator[Place]:
    """The models, the servers if they are wanted, and an empty folder. All is gone afterwards, whatever happens."""
    cores = processes.cores()
    WORKPLACE.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=WORKPLACE)))
        shared = Servers("", "")
        if with_servers:
            shared = stack.enter_context(cluster.servers(folder / "valkey", cores and cores[1]))
        yield Place(
            folder=folder,
            prepared=folder,
            run=0,
            model_url=stack.enter_context(processes.model("instant", cores and cores[1])),
            paced_url=stack.enter_context(processes.model("paced", cores and cores[1])),
            size=size,
            peers=peers.absolute(),
            core=cores and cores[0],
            model_core=cores and cores[1],
            postgres_url=shared.postgres_url,
            redis_url=shared.redis_url,
        )


def _at(place: Place, probe: str, *, run: int) -> Place:
    prepared = place.prepared / f"{probe}-prepared"
    prepared.mkdir(exist_ok=True)
    folder = place.folder / f"{probe}-{run}"
    folder.mkdir(exist_ok=True)
    return msgspec.structs.replace(place, folder=folder, prepared=prepared, run=run)


def names_of(line: Line) -> set[str]:
    """What it may be asked for by."""
    return {line.name, line.probe, *(section for section in SECTIONS if line.probe.startswith(f"{section}_"))}


def _order(probe: str) -> int:
    return [line.probe for line in LINES].index(probe)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = sorted(set().union(*map(names_of, LINES)))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--runs", type=int, default=MIN_RUNS, help=f"how often each is measured ({MIN_RUNS})")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: can every line be measured?")
    parser.add_argument("--strictness", type=float, default=1.0, help="ask for so many times more than the bars do")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every run")
    parser.add_argument(
        "--peers", type=Path, metavar="FOLDER", default=WORKPLACE / "peers", help="where what others use is installed"
    )
    parser.add_argument("--reference", action="store_true", help="make this machine the one that the bars are for")
    return parser.parse_args(arguments)


def _keep_reference(runs: dict[str, list[Measured]]) -> None:
    every = [run for measured in runs.values() for run in measured]
    cores = processes.cores()
    kept = Reference(
        calibration_ms=round(statistics.median(run.calibration_ms for run in every), 2),
        calibration_cpu_ms=round(statistics.median(run.calibration_cpu_ms for run in every), 2),
        processor=platform.machine(),
        cores=len(set(cores)) if cores else 1,
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        commit_p50_ms=round(statistics.median(run.commit_p50_ms for run in every), 3),
    )
    REFERENCE.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def _say(text: str) -> None:
    """Progress, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
