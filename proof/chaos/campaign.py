"""Chaos: a real cluster, several processes on PostgreSQL with a standby and on Valkey, under clients of several owners
that keep talking while the campaign kills, stops, cuts off, crashes, fails over and flushes its parts. At the end
nothing may be lost, repeated, or written by the wrong process; only data that a failover itself lost may be missing.

    python -m proof.chaos --minutes 10 --sessions 200 --seed 1
    python -m proof.chaos --control
"""

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.client import ClientError, connect
from holdfast.client.server import Server
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.models.server import ModelServer
from holdfast.server.http.keys import KeyRing
from holdfast.store.budget import Change, OwnerLimits, plan
from holdfast.store.clock import SystemClock
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from holdfast.store.postgres.store import PostgresStore
from proof.chaos import audit, node
from proof.chaos.effects import effects_in
from proof.chaos.killer import WEIGHTS, Killer
from proof.chaos.processes import Fleet, Node
from proof.chaos.replicas import Replicas, Window
from proof.chaos.talkers import PATIENCE_SECONDS, SCRIPT, Talker
from proof.chaos.verdict import judge, judge_fairness, judge_nodes, judge_spending
from proof.crash.trial import Violation
from proof.valkey_server import Valkey

WORKERS: Final = 3
SERVERS: Final = 2
AT_ONCE: Final = 40
"""Sessions that talk at the same time; the others take turns with them."""

OWNERS: Final = {"ann": 0.35, "bob": 0.15, "cy": 0.15, "dee": 0.1, "eve": 0.25}
"""Each with a share of the sessions: one has many, and must not take the time of the others."""

PLACED: Final = "dee"
"""The owner whose sessions are bound to one host, and wait while no worker runs on it."""

CAPPED: Final = "eve"
"""The owner with a budget, which is used up long before the end."""

DAY: Final = 2_000_000
"""That budget, in microdollars: enough for the first minute."""

PRICES: Final = '["openai/scripted"]\nmax_output = 1000\nprice = { input = 0, output = 100 }\n'

LEASE_SECONDS: Final = 4.0

SETTINGS: Final = {
    "HOLDFAST_LEASE_TTL_SECONDS": f"{LEASE_SECONDS:g}",
    "HOLDFAST_RENEW_EVERY_SECONDS": "0.5",
    "HOLDFAST_LEASE_MARGIN_SECONDS": "1",
    "HOLDFAST_LINGER_SECONDS": "0.1",
    "HOLDFAST_STREAMS_PER_OWNER": "1000",
    "HOLDFAST_AUTH": "keys",
    "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "0",
    "HOLDFAST_MAX_TURNS_IN_FLIGHT_PER_OWNER": "0",
    # Fewer places than there are turns to run: so owners have to take turns.
    "HOLDFAST_MAX_SESSIONS_PER_PROCESS": "8",
    # A session whose holder is killed repeatedly is not poison here.
    "HOLDFAST_MAX_CLAIMS_WITHOUT_PROGRESS": "1000",
}

PAUSE_SECONDS: Final = (0.5, 4.0)
"""The pause between two faults."""

SAY_EVERY_SECONDS: Final = 15.0

DEFECT: Final = "commits are not fenced"
DEFECT_SHOWS_IN: Final = ("workers stopped past their lease",)
CONTROL_PATIENCE_SECONDS: Final = 20.0
"""With the defect, turns may never end; it shows in other ways before that."""


class Chaos:
    """One run."""

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float,
        sessions: int,
        seed: int,
        kinds: Sequence[str] = tuple(WEIGHTS),
        defect: str = "",
    ) -> None:
        self._folder = folder
        self._seconds = minutes * 60
        self._count = sessions
        self._seed = seed
        self._kinds = DEFECT_SHOWS_IN if defect else tuple(kinds)
        self._defect = defect
        self._patience_seconds = CONTROL_PATIENCE_SECONDS if defect else PATIENCE_SECONDS
        self.tally: Counter[str] = Counter()
        self.blows: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self._talkers: list[Talker] = []
        self._windows: list[Window] = []
        self._ends_at = 0.0
        self._killing_is_over = asyncio.Event()

    async def run(self) -> None:
        """From the first process to the verdict."""
        with contextlib.ExitStack() as servers:
            replicas = Replicas()
            servers.callback(replicas.remove)
            servers.callback(self._keep_log, replicas)
            replicas.start()
            valkey = Valkey(self._folder / "valkey")
            valkey.start()
            servers.callback(valkey.close)
            await migrate(DatabaseAddress(replicas.primary.url()))
            await audit.run(replicas.primary.url(), audit.TRIGGERS)
            keys = await keys_for(replicas.primary.url(), tuple(OWNERS))
            await limit(replicas.primary.url(), Owner(CAPPED), DAY)
            async with ModelServer(SCRIPT) as model:
                await self._with(replicas, valkey, self._fleet(replicas, model.url, valkey.url), keys)
            effects = effects_in(self._folder / "effects")
            self.violations += await judge(replicas.primary.url(), self._talkers, effects, self._windows)
            self.violations += await judge_spending(replicas.primary.url(), Owner(CAPPED), DAY)
            own_pace = [talker for talker in self._talkers if talker.key.owner not in (PLACED, CAPPED)]
            self.violations += judge_fairness(own_pace)
            if self.violations:
                dumped = await asyncio.to_thread(replicas.primary.run, "pg_dump", "postgres")
                (self._folder / "dump.sql").write_text(dumped)

    def _fleet(self, replicas: Replicas, model_url: str, redis: str) -> Fleet:
        shared = {"HOLDFAST_SHARED_DIRECTORIES": str(self._directory("shared"))}
        (self._folder / "models.toml").write_text(PRICES, encoding="utf-8")
        shared["HOLDFAST_MODELS"] = str(self._folder / "models.toml")
        settings = {**SETTINGS, **shared, **({node.DEFECT: self._defect} if self._defect else {})}
        database = replicas.primary.url()
        return Fleet(self._folder, database=database, model_url=model_url, redis=redis, settings=settings)

    def _directory(self, name: str) -> Path:
        """The folder of sessions: one that all workers share, or one that only the host has."""
        (self._folder / name).mkdir(exist_ok=True)
        return self._folder / name

    async def _with(self, replicas: Replicas, valkey: Valkey, fleet: Fleet, keys: Mapping[str, str]) -> None:
        killer = Killer(
            fleet,
            replicas,
            valkey,
            chance=random.Random(self._seed),
            lease_seconds=LEASE_SECONDS,
            on_loss=self._lost,
            kinds=self._kinds,
        )
        try:
            await killer.begin(workers=WORKERS, servers=SERVERS)
            async with doors_of(killer.servers, keys) as doors:
                await self._talk_and_kill(killer, replicas, doors)
            for left in (*killer.workers, *killer.servers):
                await self._end(left)
            self.violations += judge_nodes((*killer.workers, *killer.dead, *killer.servers))
        finally:
            await killer.close()
        self.blows, self._windows = killer.done, killer.windows

    def _lost(self, window: Window) -> None:
        for talker in self._talkers:
            talker.forget(window.since)

    async def _talk_and_kill(self, killer: Killer, replicas: Replicas, doors: Mapping[str, Sequence[Server]]) -> None:
        self._ends_at = time.monotonic() + self._seconds
        talking = []
        async with asyncio.TaskGroup() as tasks:
            for owner, share in OWNERS.items():
                places = asyncio.Semaphore(max(1, round(AT_ONCE * share)))
                for number in range(max(1, round(self._count * share))):
                    talker = self._talker(Key(Owner(owner), SessionId(f"{owner}-{number}")), doors[owner])
                    talking.append(tasks.create_task(self._talk(talker, places)))
            telling = asyncio.create_task(self._tell(killer))
            if await self._kill(killer, replicas):
                for task in talking:
                    task.cancel()
        telling.cancel()

    def _talker(self, key: Key, doors: Sequence[Server]) -> Talker:
        directory = self._directory("placed" if key.owner == PLACED else "shared")
        chance = random.Random(f"{self._seed} {key.session}")
        talker = Talker(key, doors, chance, self.tally, directory=str(directory))
        self._talkers.append(talker)
        return talker

    async def _talk(self, talker: Talker, places: asyncio.Semaphore) -> None:
        """Run until the time is over, and then until all started work has ended."""
        try:
            async with places:
                await talker.begin()
            while time.monotonic() < self._ends_at:
                async with places, asyncio.timeout(self._patience_seconds):
                    await talker.say_something()
            await self._killing_is_over.wait()
            async with places, asyncio.timeout(self._patience_seconds):
                await talker.finish()
        except (ClientError, TimeoutError, ExceptionGroup) as error:
            why = f"{talker.name} got no further: {error!r} {getattr(error, 'exceptions', '')}"
            self.violations.append(Violation("every_turn_ends", why))

    async def _kill(self, killer: Killer, replicas: Replicas) -> bool:
        """Strike until the time is over or the planted defect shows; returns whether it does."""
        chance = random.Random(f"{self._seed} pauses")
        has_shown = False
        while not has_shown and (time.monotonic() < self._ends_at or not killer.has_done_each):
            await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
            await killer.strike()
            if self._defect:
                has_shown = any(audit.trespasses(await audit.noted(replicas.primary.url())))
        await killer.end()
        self._killing_is_over.set()
        return has_shown

    async def _tell(self, killer: Killer) -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_SECONDS)
            left = max(0.0, self._ends_at - time.monotonic())
            ended = sum(count for what, count in self.tally.items() if what.startswith("turns"))
            print(
                f"{left:4.0f} s left: {self.tally['messages']} messages, {ended} turns ended,"
                f" {killer.done.total()} blows, {len(self.violations)} violations",
                file=sys.stderr,
                flush=True,
            )

    async def _end(self, left: Node) -> None:
        code = await left.end()
        if code != 0:
            self.violations.append(Violation("a_clean_stop_is_one", f"{left.name} ended with {code}"))

    def _keep_log(self, replicas: Replicas) -> None:
        (self._folder / "postgresql.log").write_text(replicas.log())


async def keys_for(url: str, owners: Sequence[str]) -> dict[str, str]:
    """An API key for each owner."""
    store = await PostgresStore.open(url, node="keys")
    try:
        ring = KeyRing(store, SystemClock())
        return {owner: (await ring.create(name=owner, role="admin", owner=owner)).key for owner in owners}
    finally:
        await store.close()


async def limit(url: str, owner: Owner, day: int) -> None:
    """Give the owner a budget."""
    store = await PostgresStore.open(url, node="keys")
    try:
        await store.edit_budget(owner, lambda seen: plan(seen.budget, Change(at=0, to=OwnerLimits(day=day)), seen.time))
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def doors_of(nodes: Sequence[Node], keys: Mapping[str, str]) -> AsyncIterator[dict[str, list[Server]]]:
    """For each owner, a client of each node."""
    async with contextlib.AsyncExitStack() as opened:
        found: dict[str, list[Server]] = {owner: [] for owner in keys}
        for owner, key in keys.items():
            for one in nodes:
                door = connect(one.url, key, patience_seconds=PATIENCE_SECONDS)
                found[owner].append(await opened.enter_async_context(door))
        yield found


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # The model server would log every process that was killed in the middle of a response.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    folder.chmod(0o755)
    defect = DEFECT if options.control else ""
    chaos = Chaos(
        folder,
        minutes=options.minutes,
        sessions=options.sessions,
        seed=options.seed,
        kinds=options.only or tuple(WEIGHTS),
        defect=defect,
    )
    asyncio.run(chaos.run())
    _say(chaos)
    if chaos.violations and not options.control:
        print(f"The logs and a dump of the database are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if options.control:
        print(f"{DEFECT}: {'caught' if chaos.violations else 'NOT CAUGHT'}")
    return int(bool(chaos.violations) != options.control)


MOST_SHOWN: Final = 20


def _say(chaos: Chaos) -> None:
    for violation in chaos.violations[:MOST_SHOWN]:
        print(f"VIOLATION of {violation.invariant}: {violation.text}")
    rows = {**dict(sorted(chaos.tally.items())), **dict(sorted(chaos.blows.items()))}
    for what, count in {**rows, "violations": len(chaos.violations)}.items():
        print(f"{what:<36} {count:>7}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it is broken for (default: 10)")
    parser.add_argument("--sessions", type=int, default=200, help="how many sessions there are (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the order of things (default: 1)")
    parser.add_argument("--only", action="append", choices=tuple(WEIGHTS), help="break it like this only; repeatable")
    parser.add_argument("--control", action="store_true", help="plant a known defect, which must be caught")
    return parser.parse_args(arguments)
