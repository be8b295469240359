"""Simulation: the runtime on a virtual clock, with every fault drawn from a seed, and every promise checked.

    python -m proof.simulation --seeds 100000
    python -m proof.simulation --seed 1234
    python -m proof.simulation --control

A seed always plays the same: `--seed` repeats a failing one and prints its trace. The control plants known defects and
fails if one of them is not found.
"""

import argparse
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar, cast

import msgspec

from proof.simulation.defects import BY_NAME, DEFECTS, planted
from proof.simulation.real_stores import KINDS, Kind, place_of
from proof.simulation.simulation import Outcome, run

T = TypeVar("T")
R = TypeVar("R")

SEEDS = 2_000
"""How many the test suite plays."""
CONTROL_SEEDS = 4_000
"""How many a planted defect may stay hidden for: the rarest needs several faults in one world."""
AT_ONCE = 50
"""Seeds in one piece of work, between two garbage collections."""


class Tally(msgspec.Struct):
    seeds: int = 0
    events: int = 0
    virtual_seconds: float = 0
    failed: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.virtual_seconds += outcome.virtual_seconds
        if outcome.violations:
            self.failed.append(outcome)


def play(seeds: Sequence[int], store: str = "memory") -> Tally:
    """Play some seeds, one after the other."""
    tally = Tally()
    with contextlib.ExitStack() as stack:
        place = None if store == "memory" else stack.enter_context(place_of(cast(Kind, store)))
        for seed in seeds:
            tally.add(run(seed, place=place))
    gc.collect()
    return tally


def seeds_until_caught(defect: str, seeds: Sequence[int]) -> tuple[int, Outcome] | None:
    """After how many seeds a planted defect was found, and by what; None: by none of them."""
    with planted(defect):
        for count, seed in enumerate(seeds, 1):
            outcome = run(seed)
            if outcome.violations:
                return count, outcome
            if count % AT_ONCE == 0:
                gc.collect()
    return None


def told(seed: int, defect: str = "", store: str = "memory") -> Outcome:
    """One seed, with all that happened."""
    with planted(defect), contextlib.ExitStack() as stack:
        place = None if store == "memory" else stack.enter_context(place_of(cast(Kind, store)))
        return run(seed, keeps_trace=True, place=place)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.seed is not None:
        return _tell(options.seed, options.defect, options.store)
    if options.control:
        return _control(options)
    return _campaign(options)


def _tell(seed: int, defect: str, store: str) -> int:
    outcome = told(seed, defect, store)
    for line in outcome.trace:
        print(line)
    for violation in outcome.violations:
        print(f"VIOLATION of {violation.invariant}: {violation.text}")
    print(f"seed {seed}: {outcome.events} events, {len(outcome.violations)} violations")
    return 1 if outcome.violations else 0


def _campaign(options: argparse.Namespace) -> int:
    started, whole, progress = time.monotonic(), Tally(), Progress(options.seeds)
    pieces = [
        range(first, min(first + AT_ONCE, options.start + options.seeds))
        for first in range(options.start, options.start + options.seeds, AT_ONCE)
    ]
    for tally in _in_parallel(partial(play, store=options.store), pieces, options.jobs):
        for outcome in tally.failed:
            _say_failure(outcome, options.store)
        whole.seeds += tally.seeds
        whole.events += tally.events
        whole.virtual_seconds += tally.virtual_seconds
        whole.failed += tally.failed
        progress.show(whole)
    progress.end()
    seconds, hours = time.monotonic() - started, whole.virtual_seconds / 3600
    print(f"{whole.events} events in {hours:.1f} simulated hours, {seconds:.0f} seconds")
    print(f"{60 * whole.seeds / max(seconds, 0.001):,.0f} seeds per minute, with {options.jobs} processes")
    print(f"{whole.seeds} seeds, {len(whole.failed)} with violations")
    return 1 if whole.failed else 0


class Progress:
    """How far a campaign is: in place on a terminal, and elsewhere as a line now and then."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._started = self._shown = time.monotonic()

    def show(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._shown < (0.5 if sys.stderr.isatty() else 30):
            return
        self._shown = now
        rate = 60 * tally.seeds / max(now - self._started, 0.001)
        line = f"{tally.seeds} of {self._seeds} seeds, {len(tally.failed)} with violations, {rate:,.0f} a minute"
        sys.stderr.write(f"\r{line:<80}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r" + " " * 80 + "\r")


def _control(options: argparse.Namespace) -> int:
    names = [options.defect] if options.defect else [defect.name for defect in DEFECTS]
    seeds = range(options.start, options.start + options.seeds)
    print(f"{'defect':<60} {'caught by':<30} seeds")
    caught = 0
    search = partial(seeds_until_caught, seeds=seeds)
    for name, found in zip(names, _in_parallel(search, names, options.jobs), strict=True):
        by = found[1].violations[0].invariant if found else "NOT CAUGHT"
        print(f"{name:<60} {by:<30} {found[0] if found else options.seeds:>5}", flush=True)
        caught += found is not None
    print(f"{caught} of {len(names)} defects caught")
    return 0 if caught == len(names) else 1


def _in_parallel(work: Callable[[T], R], given: Sequence[T], jobs: int) -> Iterator[R]:
    if jobs == 1:
        yield from map(work, given)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, given)


def _say_failure(outcome: Outcome, store: str) -> None:
    for violation in outcome.violations[:3]:
        print(f"VIOLATION of {violation.invariant} in seed {outcome.seed}: {violation.text}")
    on_store = f" --store {store}" if store != "memory" else ""
    print(f"    python -m proof.simulation --seed {outcome.seed}{on_store}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--seeds",
        type=int,
        help=f"how many to play (default: {SEEDS}; for a defect at most {CONTROL_SEEDS})",
    )
    parser.add_argument("--start", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="play this one, and tell all that happens in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument(
        "--store", choices=("memory", *KINDS), default="memory", help="where sessions are kept (default: in memory)"
    )
    parser.add_argument("--control", action="store_true", help="plant known defects; each must be caught")
    parser.add_argument("--defect", choices=BY_NAME, default="", metavar="NAME", help="plant only this one")
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = CONTROL_SEEDS if options.control else SEEDS
    return options
