"""Chaos: a real cluster, several processes on PostgreSQL and Valkey, under clients that go on talking while all of it
is being killed, stopped, crashed and emptied. In the end nothing may be lost, repeated, or written by the wrong one.

    python -m holdfast.testing.chaos --minutes 10 --sessions 200 --seed 1
    python -m holdfast.testing.chaos --control
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
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.client import ClientError, connect
from holdfast.client.server import Server
from holdfast.models.server import ModelServer
from holdfast.store.postgres.connections import Address
from holdfast.store.postgres.migrations import migrate
from holdfast.testing.cluster import audit, node
from holdfast.testing.cluster.effects import effects_in
from holdfast.testing.cluster.killer import WEIGHTS, Killer
from holdfast.testing.cluster.processes import Fleet, Node
from holdfast.testing.cluster.talkers import PATIENCE_SECONDS, SCRIPT, Talker
from holdfast.testing.cluster.verdict import judge, judge_nodes
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.trial import Violation
from holdfast.testing.valkey_server import Valkey

WORKERS: Final = 3
SERVERS: Final = 2
AT_ONCE: Final = 40
"""Sessions that talk at the same time; the others take turns with them."""

LEASE_SECONDS: Final = 4.0
OWNER: Final = "local"

SETTINGS: Final = {
    "HOLDFAST_LEASE_TTL_SECONDS": f"{LEASE_SECONDS:g}",
    "HOLDFAST_RENEW_EVERY_SECONDS": "0.5",
    "HOLDFAST_LEASE_MARGIN_SECONDS": "1",
    "HOLDFAST_LINGER_SECONDS": "0.1",
    "HOLDFAST_STREAMS_PER_OWNER": "1000",
    # Who is killed again and again is not to blame here.
    "HOLDFAST_MAX_CLAIMS_WITHOUT_PROGRESS": "1000",
}

PAUSE_SECONDS: Final = (0.5, 4.0)
"""Between two blows."""

SAY_EVERY_SECONDS: Final = 15.0

DEFECT: Final = "commits are not fenced"
DEFECT_SHOWS_IN: Final = ("workers stopped past their lease",)


class Chaos:
    """One run."""

    def __init__(self, folder: Path, *, minutes: float, sessions: int, seed: int, defect: str = "") -> None:
        self._folder = folder
        self._seconds = minutes * 60
        self._count = sessions
        self._seed = seed
        self._defect = defect
        self.tally: Counter[str] = Counter()
        self.blows: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self._talkers: list[Talker] = []
        self._ends_at = 0.0

    async def run(self) -> None:
        """From the first process to the verdict."""
        with contextlib.ExitStack() as servers:
            postgres = servers.enter_context(PostgresServer())
            servers.callback(self._keep_log, postgres)
            valkey = Valkey(self._folder / "valkey")
            valkey.start()
            servers.callback(valkey.close)
            url = postgres.url()
            await migrate(Address(url))
            await audit.run(url, audit.TRIGGERS)
            async with ModelServer(SCRIPT) as model:
                await self._with(postgres, valkey, self._fleet(url, model.url, valkey.url))
            self.violations += await judge(url, OWNER, self._talkers, effects_in(self._folder / "effects"))
            if self.violations:
                dumped = await asyncio.to_thread(postgres.run, "pg_dump", "postgres")
                (self._folder / "dump.sql").write_text(dumped)

    def _fleet(self, url: str, model_url: str, redis: str) -> Fleet:
        settings = {**SETTINGS, **({node.DEFECT: self._defect} if self._defect else {})}
        return Fleet(self._folder, database=url, model_url=model_url, redis=redis, settings=settings)

    async def _with(self, postgres: PostgresServer, valkey: Valkey, fleet: Fleet) -> None:
        chance = random.Random(self._seed)
        kinds = DEFECT_SHOWS_IN if self._defect else tuple(WEIGHTS)
        killer = Killer(fleet, postgres, valkey, chance=chance, lease_seconds=LEASE_SECONDS, kinds=kinds)
        nodes = [await fleet.server(f"server-{number}") for number in range(SERVERS)]
        try:
            await killer.begin(WORKERS)
            async with doors_of(nodes) as doors:
                await self._talk_and_kill(killer, doors)
            for left in (*killer.workers, *nodes):
                await self._end(left)
            self.violations += judge_nodes((*killer.workers, *killer.dead, *nodes))
        finally:
            for left in (*killer.workers, *nodes):
                await left.end(9)
        self.blows = killer.done

    async def _talk_and_kill(self, killer: Killer, doors: Sequence[Server]) -> None:
        names = [f"session-{number}" for number in range(self._count)]
        self._talkers = [Talker(name, doors, random.Random(f"{self._seed} {name}"), self.tally) for name in names]
        self._ends_at = time.monotonic() + self._seconds
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for talker in self._talkers:
                tasks.create_task(self._talk(talker, places))
            tasks.create_task(self._kill(killer))
            telling = asyncio.create_task(self._tell(killer))
        telling.cancel()

    async def _talk(self, talker: Talker, places: asyncio.Semaphore) -> None:
        """Until the time is over; and then until what was begun has ended."""
        try:
            async with places:
                await talker.begin()
            while time.monotonic() < self._ends_at:
                async with places, asyncio.timeout(PATIENCE_SECONDS):
                    await talker.say_something()
        except (ClientError, TimeoutError, ExceptionGroup) as error:
            why = f"{talker.name} got no further: {error!r} {getattr(error, 'exceptions', '')}"
            self.violations.append(Violation("every_turn_ends", why))

    async def _kill(self, killer: Killer) -> None:
        chance = random.Random(f"{self._seed} pauses")
        while time.monotonic() < self._ends_at:
            await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
            await killer.strike()
        await killer.end()

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

    def _keep_log(self, postgres: PostgresServer) -> None:
        (self._folder / "postgresql.log").write_text(postgres.log())


@contextlib.asynccontextmanager
async def doors_of(nodes: Sequence[Node]) -> AsyncIterator[list[Server]]:
    async with contextlib.AsyncExitStack() as opened:
        found = []
        for one in nodes:
            door = connect(one.url, one.token, patience_seconds=PATIENCE_SECONDS)
            found.append(await opened.enter_async_context(door))
        yield found


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # The model would tell of everybody who was killed while it spoke to them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    folder.chmod(0o755)
    defect = DEFECT if options.control else ""
    chaos = Chaos(folder, minutes=options.minutes, sessions=options.sessions, seed=options.seed, defect=defect)
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
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it is broken for (default: 10)")
    parser.add_argument("--sessions", type=int, default=200, help="how many sessions there are (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the order of things (default: 1)")
    parser.add_argument("--control", action="store_true", help="plant a known defect, which must be caught")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
