"""Cuts the power at file operations drawn by a seed, and searches for acknowledged data that is gone.

A cut is a kill that also discards unsynced writes. A run of each scenario without faults finds every operation on the
database's files; then the campaign kills processes at these operations, rewrites the files as a power cut there may
have left them (`disk.py`), and the following processes must find every promise kept (`proof.crash.invariants`). The
campaign leaves out scenarios with shell commands: on a machine without power commands end, and none can be adopted. It
also leaves out scenarios with a companion, which would have to lose power at the same moment.
"""

import argparse
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import get_args

import msgspec

from proof.crash import postgres_trials
from proof.crash.campaign import aims_at, scratch_folder
from proof.crash.runner import Jobs, run
from proof.crash.scenarios import SCENARIOS
from proof.crash.trial import Database, Point, Result, Trial, parse
from proof.power_cut import vfs
from proof.power_cut.defects import BY_NAME as PLANTABLE
from proof.power_cut.defects import DEFECTS, Unsynced

NAMES = tuple(found.name for found in SCENARIOS if not found.has_commands and found.companion is None)

MAX_CONTROL_CUTS = 200
"""A defect that shows itself less often than this is as good as not caught."""

SKIPPED = 0
"""The exit status of a run on a Python whose SQLite cannot be recorded. The run prints the reason, and the suite counts
a skip."""


class Cuts(msgspec.Struct):
    """The results of a campaign's trials."""

    scenarios: dict[str, tuple[Point, ...]] = msgspec.field(default_factory=dict)
    """The points of each scenario's calm run."""
    by_operation: Counter[str] = msgspec.field(default_factory=Counter)
    cuts: int = 0
    recoveries_cut: int = 0
    violations: int = 0

    def add(self, result: Result) -> None:
        self.cuts += result.kills
        self.recoveries_cut += result.recoveries_killed
        self.violations += len(result.violations)
        if result.kills and result.trial.aims:
            self.by_operation[result.trial.aims[0].partition("#")[0]] += 1


def campaign(jobs: Jobs, names: Sequence[str], *, cuts: int, seed: int) -> Cuts:
    """Trials of the scenarios in turn, until so many cuts were made."""
    found = Cuts()
    for result in jobs.run(Trial(scenario=name, seed=seed, loses_power=True) for name in names):
        found.scenarios[result.trial.scenario] = result.points
        _take(found, result)

    def until_enough() -> Iterator[Trial]:
        for planned in _trials(found.scenarios, seed):
            if found.cuts >= cuts:
                return
            yield planned

    for result in jobs.run(until_enough()):
        _take(found, result)
    return found


def _trials(points: Mapping[str, Sequence[Point]], seed: int, defect: str = "") -> Iterator[Trial]:
    """Without end. In one half of them any operation is as likely as any other; in the other half each kind is, as
    there are hundreds of writes for each truncation. Every fourth cuts the recovery too."""
    chance = random.Random(f"{seed} power")
    places = {name: _by_kind(found) for name, found in points.items()}
    for number in count():
        name = list(places)[number % len(places)]
        kinds = list(places[name].values())
        stage, aims = chance.choice(chance.choice(kinds) if chance.random() < 0.5 else list(chain(*kinds)))
        if chance.random() < 0.25:
            aims = (*aims, f"*#{chance.randint(1, len(points[name]))}")
        yield Trial(
            scenario=name,
            kind="kill",
            stage=stage,
            aims=aims,
            seed=seed * 100_000 + number,
            defect=defect,
            loses_power=True,
        )


def _by_kind(points: Sequence[Point]) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
    """The operations on files, by kind, and the crash points of the store as one more kind."""
    kinds: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for stage, aims in aims_at(points):
        kind = aims[-1].partition("#")[0] if aims[-1].startswith("disk:") else "store"
        kinds.setdefault(kind, []).append((stage, aims))
    return kinds


def _take(found: Cuts, result: Result) -> None:
    found.add(result)
    for violation in result.violations:
        print(f"VIOLATION of {violation.invariant} in {result.trial.scenario}: {violation.text}")
    if result.violations:
        print(f"    {result.trial.command}", flush=True)


# The control


def control(jobs: Jobs, seed: int, database: Database, only: str = "") -> bool:
    """Plant every defect of syncing, one at a time. Whether all were caught."""
    print(f"{'defect':<52} {'caught by':<34} cuts")
    found = (PLANTABLE[only],) if only else tuple(defect for defect in DEFECTS if database in defect.plants)
    caught = [_catch(jobs, defect, seed) for defect in found]
    return all(caught)


def _catch(jobs: Jobs, defect: Unsynced, seed: int) -> bool:
    cuts, caught = 0, ""
    points: dict[str, Sequence[Point]] = {}
    for result in jobs.run(Trial(scenario=name, seed=seed, loses_power=True) for name in defect.scenarios):
        points[result.trial.scenario] = result.points

    def until_caught() -> Iterator[Trial]:
        for planned in _trials(points, seed, defect.name):
            if caught or cuts >= MAX_CONTROL_CUTS:
                return
            yield planned

    for result in jobs.run(until_caught()):
        cuts += result.kills
        caught = caught or (result.violations[0].invariant if result.violations else "")
    print(f"{defect.name:<52} {caught or 'NOT CAUGHT':<34} {cuts:>4}", flush=True)
    return bool(caught)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        vfs.library()
    except vfs.Unavailable as why:
        if options.database == "sqlite":
            print(f"SKIPPED: 1 campaign, because no power cut can be made with this Python: {why}")
            return SKIPPED
    with contextlib.ExitStack() as around:
        scratch = around.enter_context(scratch_folder(None, keeps=options.keep))
        urls: list[str] = []
        if options.database == "postgresql":
            count = 1 if options.replay else options.jobs
            urls = around.enter_context(postgres_trials.forgetful_databases(count))
        if options.replay:
            return _replay(options, scratch, *urls)
        jobs = Jobs(options.jobs, scratch, urls)
        try:
            if options.control:
                return 0 if control(jobs, options.seed, options.database, options.defect) else 1
            return _report(options, jobs)
        finally:
            jobs.close()


def _replay(options: argparse.Namespace, scratch: Path, url: str = "") -> int:
    trial = parse(options.scenario[0], options.replay, seed=options.seed, defect=options.defect)
    result = run(msgspec.structs.replace(trial, loses_power=True), scratch, keeps=options.keep, url=url)
    found = Cuts()
    _take(found, result)
    print(f"{found.cuts} cuts, {found.violations} violations")
    return 1 if found.violations else 0


def _report(options: argparse.Namespace, jobs: Jobs) -> int:
    started = time.monotonic()
    found = campaign(jobs, options.scenario or NAMES, cuts=options.cuts, seed=options.seed)
    print(f"{'the power is cut at':<40} {'cuts':>6}")
    for operation, cuts in sorted(found.by_operation.items()):
        if operation.startswith("disk:"):
            print(f"{operation.removeprefix('disk:'):<40} {cuts:>6}")
    inside = sum(cuts for operation, cuts in found.by_operation.items() if not operation.startswith("disk:"))
    print(f"{'a crash point of the store':<40} {inside:>6}")
    syncs = sum(point.name.endswith(" sync:after") for points in found.scenarios.values() for point in points)
    if options.database == "sqlite":
        print(f"{syncs} syncs in calm runs")
    print(f"{found.recoveries_cut} recoveries cut, {time.monotonic() - started:.0f} seconds")
    print(f"{found.cuts} cuts, {found.violations} violations")
    is_unwatched = options.database == "sqlite" and not syncs
    return 1 if found.violations or found.cuts < options.cuts or is_unwatched else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.power_cut", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cuts", type=int, default=100, help="how often to cut the power (default: 100)")
    parser.add_argument("--jobs", type=int, default=2, help="trials that run side by side (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="the order of things (default: 1)")
    parser.add_argument("--scenario", nargs="+", choices=NAMES, metavar="NAME", help="only this one, or these")
    parser.add_argument("--database", choices=get_args(Database), default="sqlite", help="on which store")
    parser.add_argument("--control", action="store_true", help="plant known defects; each must be caught")
    parser.add_argument("--defect", choices=PLANTABLE, default="", metavar="NAME", help="plant only this one")
    parser.add_argument("--replay", metavar="TRIAL", help="one trial again, as a violation printed it")
    parser.add_argument("--keep", action="store_true", help="keep what the trials left behind")
    options = parser.parse_args(arguments)
    if options.replay and not options.scenario:
        parser.error("--replay needs --scenario")
    return options
