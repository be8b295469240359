"""The crash campaign: kill a runtime at every durable write, also while it recovers, and search for violations.

    python -m proof.crash --kills 10000
    python -m proof.crash --control
    python -m proof.crash --database postgresql

Every durable write passes a named crash point. A run of each scenario without kills finds all of them; then the
campaign kills processes at these points, one after the other, and the databases they leave must keep every promise
(`invariants.py`). The control plants known defects (`defects.py`) and fails if one of them goes unnoticed.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import get_args

import msgspec

from holdfast.events.event import PROGRESS, RECORDS
from holdfast.events.inbox import Item, TaskNews
from holdfast.store.crash_points import COMMAND_VERBS, OBJECT_VERBS, ONLY_POSTGRESQL, RECEIVER_VERBS, VERBS
from proof.crash import postgres_trials
from proof.crash.defects import BY_NAME as PLANTABLE
from proof.crash.defects import DEFECTS, Defect
from proof.crash.runner import COMPANION, Jobs, run
from proof.crash.scenarios import BY_NAME, SCENARIOS
from proof.crash.trial import Database, Kind, Point, Result, Trial, parse

MAX_RECOVERIES = 3
"""How deep a recovery is itself killed. One more would make the runtime, rightly, take the turn for poison."""


class Tally(msgspec.Struct):
    """The results of one scenario's trials."""

    points: tuple[Point, ...] = ()
    seconds: float = 0
    quota: int = 0
    trials: int = 0
    kills: int = 0
    recoveries_killed: int = 0
    freezes: int = 0
    violations: int = 0

    def is_hungry(self) -> bool:
        """A trial may miss: a process that is done before it comes to its point. But not all of them may."""
        return self.kills < self.quota and self.trials < 20 + 5 * self.quota

    def add(self, result: Result) -> None:
        self.trials += 1
        self.kills += result.kills
        self.recoveries_killed += result.recoveries_killed
        self.freezes += result.freezes
        self.violations += len(result.violations)


SAY_EVERY = 500
"""Kills between two lines of progress, where there is no terminal to draw on."""


class Campaign:
    """Trials of some scenarios, until each had its share of the kills."""

    def __init__(self, names: Sequence[str], *, kills: int | None, seed: int, jobs: Jobs) -> None:
        self.tallies = {name: Tally() for name in names}
        self._kills = kills
        self._seed = seed
        self._jobs = jobs
        self._say_next = SAY_EVERY
        self._started = time.monotonic()

    def run(self) -> None:
        self._discover()
        for result in self._jobs.run(self._every_point() if self._kills is None else self._trials()):
            self._take(result)
            self._show_progress(result.trial.scenario)

    def kills(self) -> int:
        return sum(tally.kills for tally in self.tallies.values())

    def _discover(self) -> None:
        for result in self._jobs.run(Trial(scenario=name, seed=self._seed) for name in self.tallies):
            tally = self.tallies[result.trial.scenario]
            tally.points, tally.seconds = result.points, result.seconds
            self._take(result)
        total = sum(len(tally.points) for tally in self.tallies.values())
        for tally in self.tallies.values():
            tally.quota = -(-(self._kills or 0) * len(tally.points) // max(1, total))

    def _take(self, result: Result) -> None:
        self.tallies[result.trial.scenario].add(result)
        _say_violations(result)

    def _trials(self) -> Iterator[Trial]:
        """Round and round, so that every scenario has had some whenever the campaign is ended."""
        endless = {name: plan(name, tally, self._seed, self._jobs.database) for name, tally in self.tallies.items()}
        while hungry := [name for name, tally in self.tallies.items() if tally.is_hungry()]:
            for name in hungry:
                yield next(endless[name])

    def _every_point(self) -> Iterator[Trial]:
        """A single kill in each point that was found, and nothing else."""
        for name, tally in self.tallies.items():
            for stage, aims in aims_at(tally.points):
                yield Trial(scenario=name, kind="kill", stage=stage, aims=aims, seed=self._seed)

    def _show_progress(self, name: str) -> None:
        wanted = "" if self._kills is None else f" of {self._kills}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{self.kills()}{wanted} kills, {name:<20}")
            sys.stderr.flush()
        elif self.kills() >= self._say_next:
            self._say_next += SAY_EVERY
            seconds = time.monotonic() - self._started
            print(f"{self.kills()}{wanted} kills, {seconds:.0f} seconds …", file=sys.stderr, flush=True)


def plan(name: str, tally: Tally, seed: int, database: Database = "sqlite") -> Iterator[Trial]:
    """Trials without end: every point in turn, in a seeded order; now and then something worse than a single kill."""
    chance = random.Random(f"{seed} {name}")
    places = aims_at(tally.points)
    for number in count():
        if number % len(places) == 0:
            chance.shuffle(places)
        stage, aims = places[number % len(places)]
        trial = Trial(scenario=name, kind="kill", stage=stage, aims=aims, seed=seed * 100_000 + number)
        match chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                depth = chance.randint(1, MAX_RECOVERIES)
                deeper = tuple(f"*#{chance.randint(1, len(places))}" for _ in range(depth))
                yield msgspec.structs.replace(trial, aims=(*aims, *deeper))
            case 5 | 6:
                yield msgspec.structs.replace(trial, aims=(f"~{chance.uniform(0, tally.seconds):.4f}",))
            case 7:
                yield msgspec.structs.replace(trial, kind="pair")
            case 8 | 9 | 10 if can_freeze(aims, database) and not _waits_for_the_frozen(name, database):
                yield msgspec.structs.replace(trial, kind="freeze")
            case 11 | 12 | 13 if BY_NAME[name].companion is not None:
                yield msgspec.structs.replace(trial, aims=(*aims, f"{COMPANION}*#{chance.randint(1, len(places))}"))
            case _:
                yield trial


def aims_at(points: Sequence[Point]) -> list[tuple[int, tuple[str, ...]]]:
    """Every point of a calm run, with its stage: the first time that it is passed, the second time, and so on."""
    seen: Counter[Point] = Counter()
    places = []
    for point in points:
        seen[point] += 1
        aim = f"{point.name}#{seen[point]}"
        aims = (f"{COMPANION}{aim}",) if point.by_companion else (*("-",) * point.process, aim)
        places.append((point.stage, aims))
    return places


def can_freeze(aims: Sequence[str], database: Database) -> bool:
    """On SQLite only after a write, in the thread that writes: a frozen transaction would block every other writer for
    as long as it is frozen. PostgreSQL ends such a transaction by itself."""
    is_outside = (":after#" in aims[0] and not aims[0].startswith(COMMAND_VERBS)) or database == "postgresql"
    return len(aims) == 1 and is_outside and not aims[0].startswith((*NEVER_FROZEN, COMPANION))


def _waits_for_the_frozen(name: str, database: Database) -> bool:
    return BY_NAME[name].looks_for_the_absent and database == "sqlite"


NEVER_FROZEN = ("tool:", "register:", "add_file:", *(f"{verb}:" for verb in OBJECT_VERBS))
"""A tool's effect is outside every transaction; one that can't register did not start, and says so. An upload may go on
for less long than it takes until it is given up: here, it is given up at once."""


# Crash points that must have been visited


def unvisited(points: set[str], database: Database) -> list[str]:
    """Points of the code that no process passed: both sides of every verb, every kind of item and every event. The
    verbs that record the outcome of tasks also put their news."""
    missing = [
        f"{verb}:{side}"
        for verb in (
            *VERBS,
            *COMMAND_VERBS,
            *RECEIVER_VERBS,
            *OBJECT_VERBS,
            *(ONLY_POSTGRESQL if database == "postgresql" else ()),
        )
        for side in ("before", "after")
        if not any(point.startswith(f"{verb}:") and point.endswith(f":{side}") for point in points)
    ]
    kinds = [str(kind.__struct_config__.tag) for kind in Item.__args__ if kind is not TaskNews]
    missing += [f"put:{kind}" for kind in kinds if f"put:{kind}:after" not in points]
    written = {name for point in points if point.startswith("commit:") for name in point.split(":")[1].split("+")}
    known = {str(kind.__struct_config__.tag) for kind in (*PROGRESS, *RECORDS)}
    return missing + [f"commit:{name}" for name in sorted(known - written)]


# The control


def control(jobs: Jobs, seed: int, only: str = "") -> bool:
    """Plant every defect, one at a time. Whether all were caught."""
    print(f"{'defect':<52} {'caught by':<34} kills")
    shown_here = [defect for defect in DEFECTS if jobs.database in defect.databases]
    caught = [_catch(jobs, defect, seed) for defect in ([PLANTABLE[only]] if only else shown_here)]
    return all(caught)


def _catch(jobs: Jobs, defect: Defect, seed: int) -> bool:
    """Trials of the scenarios that could show it, until one does."""
    kills = 0
    caught: Result | None = None
    points: dict[str, tuple[Point, ...]] = {}

    def until_caught(trials: Iterator[Trial]) -> Iterator[Trial]:
        for trial in trials:
            if caught is not None or kills >= MAX_CONTROL_KILLS:
                return
            yield trial

    for trials in (calm_trials(defect, seed), violent_trials(defect, seed, points, jobs.database)):
        for result in jobs.run(until_caught(trials)):
            kills += result.kills + result.freezes
            points.setdefault(result.trial.scenario, result.points)
            caught = caught or (result if result.violations else None)
    by = caught.violations[0].invariant if caught else "NOT CAUGHT"
    print(f"{defect.name:<52} {by:<34} {kills:>5}", flush=True)
    return caught is not None


MAX_CONTROL_KILLS = 400
"""A defect that shows itself less often than this is as good as not caught."""


def calm_trials(defect: Defect, seed: int) -> Iterator[Trial]:
    """Some defects show without a crash; and these runs find the points, which a defect may have moved."""
    for name in defect.scenarios:
        yield Trial(scenario=name, seed=seed, defect=defect.name)
    for number in range(PAIRS if "pair" in defect.kinds else 0):
        name = defect.scenarios[number % len(defect.scenarios)]
        yield Trial(scenario=name, kind="pair", seed=seed + number, defect=defect.name)


PAIRS = 6


def violent_trials(
    defect: Defect, seed: int, points: Mapping[str, Sequence[Point]], database: Database
) -> Iterator[Trial]:
    """Kill, or freeze, at every point near the defect; a race may need a few rounds."""
    kind: Kind = "freeze" if "freeze" in defect.kinds else "kill"
    for number in range(ROUNDS):
        for name in defect.scenarios:
            for stage, aims in aims_at(points[name]):
                if defect.near in aims[-1] and (kind == "kill" or can_freeze(aims, database)):
                    yield Trial(
                        scenario=name, kind=kind, stage=stage, aims=aims, seed=seed + number, defect=defect.name
                    )


ROUNDS = 4


@contextmanager
def scratch_folder(parent: Path | None, *, keeps: bool = False) -> Iterator[Path]:
    """A folder for the databases of the trials: in memory where that can be had, as a kill is not a power cut."""
    if parent is None and os.access(MEMORY, os.W_OK):
        parent = MEMORY
    folder = Path(tempfile.mkdtemp(prefix="holdfast-campaign-", dir=parent))
    try:
        yield folder
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


MEMORY = Path("/dev/shm")


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    with contextlib.ExitStack() as around:
        scratch = around.enter_context(scratch_folder(options.scratch, keeps=options.keep))
        urls: list[str] = []
        if options.database == "postgresql":
            urls = around.enter_context(postgres_trials.databases(1 if options.replay else options.jobs))
        if options.replay:
            return _replay(options, scratch, *urls)
        jobs = Jobs(options.jobs, scratch, urls)
        try:
            if options.control:
                return 0 if control(jobs, options.seed, options.defect) else 1
            return _campaign(options, jobs)
        finally:
            jobs.close()


def _campaign(options: argparse.Namespace, jobs: Jobs) -> int:
    names = options.scenario or [scenario.name for scenario in SCENARIOS]
    started = time.monotonic()
    kills = None if options.every else options.kills
    campaign = Campaign(names, kills=kills, seed=options.seed, jobs=jobs)
    campaign.run()
    if sys.stderr.isatty():
        sys.stderr.write("\r" + " " * 60 + "\r")
    _say_table(campaign.tallies)
    points = {point.name for tally in campaign.tallies.values() for point in tally.points}
    holes = [] if options.scenario else unvisited(points, jobs.database)
    for hole in holes:
        print(f"no scenario visits {hole}")
    violations = sum(tally.violations for tally in campaign.tallies.values())
    seconds = time.monotonic() - started
    pace = f"{campaign.kills() / seconds * 60:.0f} kills a minute"
    print(f"{len(campaign.tallies)} scenarios, {len(points)} crash points, {seconds:.0f} seconds, {pace}")
    print(f"{campaign.kills()} kills, {violations} violations")
    is_short = kills is not None and campaign.kills() < kills
    return 1 if violations or holes or is_short else 0


def _replay(options: argparse.Namespace, scratch: Path, url: str = "") -> int:
    if not options.scenario:
        raise SystemExit("--replay needs --scenario")
    trial = parse(options.scenario[0], options.replay, seed=options.seed, defect=options.defect)
    result = run(trial, scratch, keeps=options.keep, url=url)
    _say_violations(result)
    print(f"{result.kills} kills, {result.freezes} freezes, {len(result.violations)} violations")
    if options.keep:
        print(f"kept in {scratch}")
    return 1 if result.violations else 0


def _say_violations(result: Result) -> None:
    for violation in result.violations:
        print(f"VIOLATION of {violation.invariant} in {result.trial.scenario}: {violation.text}")
    if result.violations:
        print(f"    {result.trial.command}", flush=True)


def _say_table(tallies: dict[str, Tally]) -> None:
    print(f"{'scenario':<22} {'points':>7} {'kills':>7} {'recoveries killed':>18} {'freezes':>8} {'violations':>11}")
    for name, tally in tallies.items():
        print(
            f"{name:<22} {len(tally.points):>7} {tally.kills:>7} {tally.recoveries_killed:>18}"
            f" {tally.freezes:>8} {tally.violations:>11}"
        )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.crash", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=300, help="how many processes to kill (default: 300)")
    parser.add_argument("--every", action="store_true", help="instead: kill once in every point")
    parser.add_argument("--jobs", type=int, default=2, help="trials that run side by side (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="the order of things (default: 1)")
    parser.add_argument(
        "--scenario", nargs="+", choices=sorted(BY_NAME), metavar="NAME", help="only this one, or these"
    )
    parser.add_argument("--control", action="store_true", help="plant known defects; each must be caught")
    parser.add_argument("--defect", choices=PLANTABLE, default="", metavar="NAME", help="plant only this one")
    parser.add_argument("--replay", default="", help="one trial, as a violation printed it")
    parser.add_argument("--keep", action="store_true", help="with --replay: leave the files")
    parser.add_argument("--database", choices=get_args(Database), default="sqlite", help="the store (default: sqlite)")
    parser.add_argument("--scratch", type=Path, help="where the databases go (default: memory, if there is any)")
    return parser.parse_args(arguments)
