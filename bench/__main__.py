"""`python -m bench`: runs every probe in turn, several times over, and prints a table. A missed bar exits with 1.

A full run also writes its figures into docs/performance.md and the README.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import cluster, processes
from bench.bars import LINES, MIN_RUNS
from bench.calibration import REFERENCE, Machine, reference, this_machine
from bench.cluster import Servers
from bench.pages import is_published, write_page, write_published
from bench.place import FULL, QUICK, Measured, Place, Size
from bench.report import Report, Scope, judge_again, judge_all
from bench.report_page import MarkersBroken, blocks_of
from bench.sections import names_of, selected
from bench.table import print_table

WORKPLACE = processes.ROOT / ".bench"
"""On the file system of the working directory: how fast it syncs is the point."""

PREPARED = frozenset({"cold_open", "long_session", "waiting", "http_peers", "cluster_claims", "page_scroll"})
"""Probes whose runs share something that takes long to make."""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    bars_for = reference()
    started = time.monotonic()
    try:
        report = _kept(asked.kept, bars_for) if asked.kept else _measured(asked, bars_for)
    except (processes.ProbeFailed, msgspec.DecodeError, OSError) as failed:
        print(f"Could not be {'read' if asked.kept else 'measured'}: {failed}", file=sys.stderr)
        return 2
    print_table(report.lines, report.not_measured, runs=report.runs, reference=bars_for)
    for probe, why in report.unprepared.items():
        print(f"COULD NOT BE PREPARED: {probe}. Its lines count as missed. {why}")
    if not asked.kept:
        print(f"{asked.runs} runs in {time.monotonic() - started:.0f} s.")
    if report.scope.quick or report.scope.runs < MIN_RUNS:
        print(f"A quick look: the bars are stated for {MIN_RUNS} runs at full size.")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if asked.reference and report.machine is not None:
        REFERENCE.write_bytes(msgspec.json.format(msgspec.json.encode(report.machine)) + b"\n")
    _write_pages(report, asked, bars_for)
    return 1 if _is_failed(report) else 0


def _measured(asked: argparse.Namespace, bars_for: Machine) -> Report:
    """Run the probes of the lines that were asked for."""
    scope = Scope(only=asked.only or [], quick=asked.quick, runs=asked.runs, strictness=asked.strictness)
    probes = sorted({line.probe for line in selected(scope.only)}, key=_order)
    runs, unprepared = run_all(probes, runs=scope.runs, size=QUICK if scope.quick else FULL, peers=asked.peers)
    return judge_all(runs, unprepared, scope=scope, machine=_machine(runs), reference=bars_for)


def _kept(file: Path, bars_for: Machine) -> Report:
    """The report that an earlier `--json` wrote, judged by the bars as they are now."""
    kept = msgspec.json.decode(file.read_bytes(), type=Report)
    return judge_again(kept, reference=bars_for)


def _write_pages(report: Report, asked: argparse.Namespace, bars_for: Machine) -> None:
    if asked.page:
        write_page(asked.page, report, reference=bars_for)
        print(f"{asked.page} is written.")
    elif not asked.no_page:
        print(*write_published(report, reference=bars_for), sep="\n")


def _is_failed(report: Report) -> bool:
    """Elsewhere than on Linux, some lines can't be measured."""
    unmeasured = report.bounded_not_measured and sys.platform == "linux"
    return bool(report.unprepared or unmeasured or any(line.verdict == "MISSED" for line in report.lines))


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
    parser.add_argument("--from", dest="kept", type=Path, metavar="FILE", help="judge what an earlier --json wrote")
    pages = parser.add_mutually_exclusive_group()
    pages.add_argument(
        "--page", type=Path, metavar="FILE", help="write a page of your own, of any run, instead of the published ones"
    )
    pages.add_argument("--no-page", action="store_true", help="do not write docs/performance.md and the README")
    asked = parser.parse_args(arguments)
    if asked.kept and (asked.only or asked.quick or asked.json or asked.reference):
        parser.error("--from measures nothing, and so takes no --only, --quick, --json or --reference")
    if asked.page:
        _check_page(parser, asked.page)
    return asked


def _check_page(parser: argparse.ArgumentParser, page: Path) -> None:
    """Refuse a page that can't be written, before anything is measured."""
    if is_published(page):
        parser.error(f"a full run writes {page} without --page, and no other run may")
    try:
        blocks_of(page.read_text(encoding="utf-8"))
    except (OSError, MarkersBroken) as unusable:
        parser.error(f"{page} can't be written: {unusable}")


def _machine(runs: dict[str, list[Measured]]) -> Machine | None:
    cores = processes.cores()
    every = [run for measured in runs.values() for run in measured]
    return this_machine(every, cores=len(set(cores)) if cores else 1)


def _say(text: str) -> None:
    """Progress, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
