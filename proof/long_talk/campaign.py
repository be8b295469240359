"""Plays one long session with a model of a small window, kills its process again and again, and checks what it knows.

A child process (`child.py`) runs the session and has the client; this process kills it with SIGKILL at random moments,
some of them in a compaction, and starts the next one. Every 100 turns, and in the end, it checks (`audit.py`):

- each planted sentence of the person is word for word in the context of the next call, or the summary there names a
  position that covers it; `recall`, called by the model in a turn, returns the sentences of some groups, in the end of
  all;
- every message was accepted once and has one turn, and no turn failed;
- a tool that asks still asks, the mode is stated in each call after a compaction, and mode, dry run and rules are those
  of the start;
- the session was compacted often enough.

The same seed gives the same turns to kill in; the moments within them are up to the machine.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

import asyncpg
import msgspec

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from proof.crash.trial import Database
from proof.long_talk.audit import Audit, Seen
from proof.long_talk.child import Setup
from proof.long_talk.defects import BY_NAME, DEFECTS
from proof.long_talk.process import Refused, Stuck
from proof.long_talk.script import DENIED, NOTED, is_gated, words
from proof.long_talk.talk import Kill, Talk, plan_kills, setting_of
from proof.postgres_server import PostgresServer

BLOCK: Final = 100
"""After so many turns there is a check, and a line of progress."""
LOOKUPS: Final = 3
"""Groups of sentences that are looked for in a check before the last one."""
TURNS_OF_A_COMPACTION: Final = 50
"""There is at least one compaction in so many turns."""

CONTROL_TURNS: Final = 60
CONTROL_KILLS: Final = 4


class Played(msgspec.Struct):
    """The outcome of one session."""

    turns: int
    kills: int
    kills_at_summary: int
    seen: Seen
    violations: tuple[str, ...]


async def play(setup: Setup, database: str, *, kills: int, seed: int, progress: bool = True) -> Played:
    """One session, from its first turn to the last check. With a defect it ends at the first violation."""
    chance = random.Random(f"{seed} long talk")
    environ = setting_of(database, Path(setup.folder))
    talk = Talk(setup, environ, chance)
    async with Runtime(config=load({}, environ), environ=environ, work=False) as reader:
        audit = Audit(talk, reader, chance)
        try:
            await _play(talk, audit, plan_kills(setup.turns, kills, chance), progress=progress)
        except (Refused, Stuck) as failed:
            talk.violate(f"after {len(talk.said)} messages: {failed}")
        finally:
            await talk.end()
    return Played(setup.turns, talk.kills, talk.kills_at_summary, audit.seen, tuple(talk.violations))


async def _play(talk: Talk, audit: Audit, kills: dict[int, Kill], *, progress: bool) -> None:
    turns, started = talk.setup.turns, time.monotonic()
    await talk.begin()
    await audit.begin()
    for turn in range(turns):
        message_id = f"turn-{turn}"
        answer = DENIED if is_gated(turn) else NOTED
        await talk.say(message_id, words(turn), answer=answer, kill=kills.get(turn, ""))
        if is_gated(turn) and not talk.was_denied(message_id):
            talk.violate(f"no permission was asked for in turn {turn}")
        await audit.after_turn(turn + 1)
        if (turn + 1) % BLOCK == 0 and turn + 1 < turns:
            await audit.check(turn + 1, lookups=LOOKUPS)
            if progress:
                print(_line(turn + 1, talk, audit.seen, time.monotonic() - started), flush=True)
        if talk.setup.defect and talk.violations:
            return
    await audit.check(turns, lookups=None)
    await audit.finish(min_compactions=turns // TURNS_OF_A_COMPACTION)


def _line(turn: int, talk: Talk, seen: Seen, seconds: float) -> str:
    sentences = f"{seen.in_context} sentences in context, {seen.covered} covered, {seen.recalled} recalled"
    done = f"turn {turn}: {seen.compactions} compactions, {talk.kills} kills, {sentences}"
    return f"{done}, {len(talk.violations)} violations, {seconds:.0f} s"


# Databases


@contextlib.contextmanager
def _databases(kind: Database, folder: Path) -> Iterator[Iterator[str]]:
    """The URLs of empty databases, without end."""
    if kind == "sqlite":
        yield (f"sqlite:///{folder / f'{number}.db'}" for number in range(1_000_000))
        return
    with PostgresServer() as server:
        yield (_new_database(server, f"long_talk_{number}") for number in range(1_000_000))


def _new_database(server: PostgresServer, name: str) -> str:
    async def create() -> None:
        db = await asyncpg.connect(server.url())
        try:
            await db.execute(f"CREATE DATABASE {name}")
        finally:
            await db.close()
        await migrate(DatabaseAddress(server.url(name)))

    asyncio.run(create())
    return server.url(name)


def _setup(scratch: Path, number: int, turns: int, defect: str = "") -> Setup:
    folder = scratch / f"talk-{number}"
    folder.mkdir(mode=0o700)
    return Setup(folder=str(folder), turns=turns, defect=defect)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-talk-") as made:
        scratch = Path(made)
        with _databases(options.database, scratch) as urls:
            if options.control:
                return 0 if _control(options, scratch, urls) else 1
            return _report(options, scratch, next(urls))


def _report(options: argparse.Namespace, scratch: Path, url: str) -> int:
    started = time.monotonic()
    setup = _setup(scratch, 0, options.turns, options.defect)
    played = asyncio.run(play(setup, url, kills=options.kills, seed=options.seed))
    for violation in played.violations:
        print(f"VIOLATION: {violation}")
    seen = played.seen
    print(
        f"{options.database}: {played.turns} turns, {seen.compactions} compactions, {played.kills} kills "
        f"({played.kills_at_summary} in a compaction), {seen.in_context} sentences in context, {seen.covered} covered, "
        f"{seen.recalled} recalled, {len(played.violations)} violations, {time.monotonic() - started:.0f} seconds"
    )
    return 1 if played.violations or played.kills < options.kills else 0


def _control(options: argparse.Namespace, scratch: Path, urls: Iterator[str]) -> bool:
    """Plant every defect, one at a time. Whether all were caught."""
    caught = 0
    chosen = (BY_NAME[options.defect],) if options.defect else DEFECTS
    for number, defect in enumerate(chosen):
        setup = _setup(scratch, number, CONTROL_TURNS, defect.name)
        url = next(urls)
        played = asyncio.run(play(setup, url, kills=CONTROL_KILLS, seed=options.seed, progress=False))
        caught += bool(played.violations)
        print(f"{defect.name:<44} {played.violations[0] if played.violations else 'NOT CAUGHT'}", flush=True)
    print(f"{options.database}: {caught} of {len(chosen)} planted defects caught")
    return caught == len(chosen)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "Talk to one session for 1,000 turns, and kill its process on the way."
    parser = argparse.ArgumentParser(prog="python -m proof.long_talk", description=about)
    parser.add_argument("--turns", type=int, default=1000, help="turns of the session (default: 1000)")
    parser.add_argument("--kills", type=int, default=25, help="how often its process is killed (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="the order of things (default: 1)")
    parser.add_argument("--database", choices=get_args(Database), default="sqlite", help="on which store")
    parser.add_argument("--control", action="store_true", help="plant known defects; each must be caught")
    parser.add_argument("--defect", choices=BY_NAME, default="", metavar="NAME", help="plant only this one")
    options = parser.parse_args(arguments)
    if options.kills and options.turns < options.kills + 30:
        parser.error("--turns must be 30 more than --kills")
    return options
