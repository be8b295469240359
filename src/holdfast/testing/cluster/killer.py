"""Breaks a cluster, again and again, in a seeded order: workers are killed, and stopped for longer than their lease;
PostgreSQL crashes; Valkey is emptied, and killed."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from holdfast.testing.cluster.processes import Fleet, Node
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.valkey_server import Valkey

WEIGHTS: Final[Mapping[str, int]] = {
    "workers killed": 4,
    "workers stopped past their lease": 4,
    "PostgreSQL crashes": 2,
    "Valkey flushes": 1,
    "Valkey kills": 2,
}

ASLEEP_SECONDS: Final = 2.0
"""Beyond the lease."""


class Killer:
    """Knows who is there, and counts what it did to them."""

    def __init__(
        self,
        fleet: Fleet,
        postgres: PostgresServer,
        valkey: Valkey,
        *,
        chance: random.Random,
        lease_seconds: float,
        kinds: Sequence[str] = tuple(WEIGHTS),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.workers: list[Node] = []
        self.dead: list[Node] = []
        self._fleet = fleet
        self._postgres = postgres
        self._valkey = valkey
        self._chance = chance
        self._asleep_seconds = lease_seconds + ASLEEP_SECONDS
        self._kinds = list(kinds)
        self._first = self._chance.sample(self._kinds, len(self._kinds))
        """Each of them once, before chance decides: a short run, too, has seen them all."""
        self._generations = 0
        self._resting: dict[str, asyncio.Task[None]] = {}

    async def begin(self, count: int) -> None:
        for _ in range(count):
            await self._add()

    async def strike(self) -> str:
        """Do one thing, and say which."""
        kind = self._first.pop() if self._first else self._any_kind()
        deeds: dict[str, Callable[[], Awaitable[None]]] = {
            "workers killed": self._kill,
            "workers stopped past their lease": self._stop,
            "PostgreSQL crashes": self._crash,
            "Valkey flushes": self._flush,
            "Valkey kills": self._kill_valkey,
        }
        self.done[kind] += 1
        await deeds[kind]()
        return kind

    def _any_kind(self) -> str:
        (kind,) = self._chance.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])
        return kind

    async def end(self) -> None:
        """Everything is whole again."""
        await asyncio.gather(*self._resting.values())

    # What it does

    async def _kill(self) -> None:
        victim = self._awake()
        if victim is None:
            return
        self.workers.remove(victim)
        await victim.end(signal.SIGKILL)
        self.dead.append(victim)
        await self._add()

    async def _stop(self) -> None:
        victim = self._awake()
        if victim is None:
            return
        victim.send(signal.SIGSTOP)

        async def wake() -> None:
            await asyncio.sleep(self._asleep_seconds)
            victim.send(signal.SIGCONT)
            del self._resting[victim.name]

        self._resting[victim.name] = asyncio.create_task(wake())

    async def _crash(self) -> None:
        await asyncio.to_thread(self._postgres.restart, "immediate")

    async def _flush(self) -> None:
        if self._valkey.is_running:
            await asyncio.to_thread(self._valkey.flush)

    async def _kill_valkey(self) -> None:
        if not self._valkey.is_running:
            return
        await asyncio.to_thread(self._valkey.kill)

        async def start() -> None:
            await asyncio.sleep(self._chance.uniform(0.5, 3))
            await asyncio.to_thread(self._valkey.start)
            del self._resting["valkey"]

        self._resting["valkey"] = asyncio.create_task(start())

    async def _add(self) -> None:
        """A name is never used again: what was written by whom must be plain."""
        self._generations += 1
        self.workers.append(await self._fleet.worker(f"worker-{self._generations}"))

    def _awake(self) -> Node | None:
        """Somebody to hurt. One is always left alone, so that work goes on."""
        awake = [found for found in self.workers if found.name not in self._resting]
        return self._chance.choice(awake) if len(awake) > 1 else None
