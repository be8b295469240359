"""Breaks a cluster, again and again, in a seeded order: workers and servers are killed, stopped for longer than their
lease, and cut off from the database; a host gets another name for a while; PostgreSQL crashes, and fails over to its
standby with and without loss; Valkey is emptied, and killed."""

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from proof.chaos.processes import Fleet, Node
from proof.chaos.relay import Relay
from proof.chaos.replicas import Replicas, Window
from proof.valkey_server import Valkey

WEIGHTS: Final[Mapping[str, int]] = {
    "workers killed": 4,
    "workers stopped past their lease": 3,
    "workers cut off": 2,
    "servers killed": 3,
    "servers stopped past their lease": 2,
    "servers cut off": 2,
    "hosts renamed": 2,
    "PostgreSQL crashes": 2,
    "failovers": 1,
    "failovers with loss": 1,
    "Valkey flushes": 1,
    "Valkey kills": 2,
}

HOST: Final = "the-host"
"""The node to which some sessions are bound: all servers run on it, and one worker."""

ASLEEP_SECONDS: Final = 2.0
"""Beyond the lease."""


class Killer:
    """Knows the running nodes, and counts the faults that it injected."""

    def __init__(
        self,
        fleet: Fleet,
        replicas: Replicas,
        valkey: Valkey,
        *,
        chance: random.Random,
        lease_seconds: float,
        on_loss: Callable[[Window], None],
        kinds: Sequence[str] = tuple(WEIGHTS),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.workers: list[Node] = []
        self.servers: list[Node] = []
        self.dead: list[Node] = []
        self.windows: list[Window] = []
        """The windows in which failovers lost transactions."""
        self._fleet = fleet
        self._replicas = replicas
        self._valkey = valkey
        self._chance = chance
        self._asleep_seconds = lease_seconds + ASLEEP_SECONDS
        self._on_loss = on_loss
        self._kinds = list(kinds)
        self._first = self._chance.sample(self._kinds, len(self._kinds))
        """Each kind once, before chance decides, so that a short run also covers all kinds."""
        self._generations: Counter[str] = Counter()
        self._relays: dict[str, Relay] = {}
        self._opened = contextlib.AsyncExitStack()
        self._resting: dict[str, asyncio.Task[None]] = {}
        self._hosting = ""
        """The worker that is on the host now."""

    async def begin(self, *, workers: int, servers: int) -> None:
        """Start all nodes, and the standby."""
        await self._replicas.add_standby()
        for _ in range(servers):
            self.servers.append(await self._server())
        await self._worker_on_host()
        for _ in range(workers - 1):
            await self._worker()

    async def strike(self) -> str:
        """Inject one fault, and return its kind."""
        kind = self._first.pop() if self._first else self._any_kind()
        deeds: dict[str, Callable[[], Awaitable[None]]] = {
            "workers killed": self._kill_worker,
            "workers stopped past their lease": lambda: self._stop(self._awake(self.workers)),
            "workers cut off": lambda: self._cut_off(self._awake(self.workers)),
            "servers killed": self._kill_server,
            "servers stopped past their lease": lambda: self._stop(self._awake(self.servers)),
            "servers cut off": lambda: self._cut_off(self._awake(self.servers)),
            "hosts renamed": self._rename_host,
            "PostgreSQL crashes": self._replicas.crash,
            "failovers": lambda: self._fail_over(loses=False),
            "failovers with loss": lambda: self._fail_over(loses=True),
            "Valkey flushes": self._flush,
            "Valkey kills": self._kill_valkey,
        }
        self.done[kind] += 1
        await deeds[kind]()
        return kind

    @property
    def has_done_each(self) -> bool:
        """Whether every kind of fault was injected at least once."""
        return not self._first

    def _any_kind(self) -> str:
        (kind,) = self._chance.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])
        return kind

    async def end(self) -> None:
        """Undo all faults."""
        while self._resting:
            await asyncio.gather(*self._resting.values())

    async def close(self) -> None:
        """Kill every process that still runs."""
        for resting in self._resting.values():
            resting.cancel()
        for node in (*self.workers, *self.servers):
            await node.end(signal.SIGKILL)
        await self._opened.aclose()

    # Workers and servers

    async def _kill_worker(self) -> None:
        victim = self._awake(self.workers)
        if victim is None:
            return
        await self._killed(self.workers, victim)
        await (self._worker_on_host() if victim.name == self._hosting else self._worker())

    async def _kill_server(self) -> None:
        """The next one listens where its clients look for it."""
        victim = self._awake(self.servers)
        if victim is None:
            return
        place = self.servers.index(victim)
        await self._killed(self.servers, victim)
        self.servers.insert(place, await self._server(port=victim.port))

    async def _killed(self, nodes: list[Node], victim: Node) -> None:
        nodes.remove(victim)
        await victim.end(signal.SIGKILL)
        self.dead.append(victim)

    async def _stop(self, victim: Node | None) -> None:
        if victim is None:
            return
        victim.send(signal.SIGSTOP)
        self._rest(victim.name, self._asleep_seconds, lambda: victim.send(signal.SIGCONT))

    async def _cut_off(self, victim: Node | None) -> None:
        if victim is None:
            return
        relay = self._relays[victim.name]
        relay.cut()
        self._rest(victim.name, self._asleep_seconds, relay.heal)

    async def _rename_host(self) -> None:
        """Restart the host's worker under another node name: sessions that are bound to the host wait until a worker
        has the old name again."""
        victim = next((node for node in self.workers if node.name == self._hosting), None)
        if victim is None or victim.name in self._resting:
            return
        await self._killed(self.workers, victim)
        self._hosting = ""
        renamed = await self._worker()

        async def rename_again() -> None:
            await asyncio.sleep(self._asleep_seconds)
            if renamed in self.workers and renamed.name not in self._resting:
                await self._killed(self.workers, renamed)
            await self._worker_on_host()

        self._after("host", rename_again())

    # The database and the bus

    async def _fail_over(self, *, loses: bool) -> None:
        """No other fault is active meanwhile: a stalled server could answer for a database that is gone."""
        await self.end()
        window = await self._replicas.fail_over(loses=loses)
        for relay in self._relays.values():
            relay.lead_to(self._replicas.primary.socket)
        if window is not None:
            self.windows.append(window)
            self._on_loss(window)
        self._after("standby", self._replicas.add_standby())

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

        self._after("valkey", start())

    # How nodes are started, and rest

    async def _worker(self) -> Node:
        name = self._name("worker")
        started = await self._fleet.worker(name, HOLDFAST_DATABASE=await self._database(name))
        self.workers.append(started)
        return started

    async def _worker_on_host(self) -> None:
        name = self._name("worker")
        self._hosting = name
        database = await self._database(name)
        self.workers.append(await self._fleet.worker(name, HOLDFAST_DATABASE=database, HOLDFAST_NODE=HOST))

    async def _server(self, port: int = 0) -> Node:
        name = self._name("server")
        database = await self._database(name)
        return await self._fleet.server(name, port=port, HOLDFAST_DATABASE=database, HOLDFAST_NODE=HOST)

    def _name(self, what: str) -> str:
        """A name is never used again, so that the writer of each event stays unambiguous."""
        self._generations[what] += 1
        return f"{what}-{self._generations[what]}"

    async def _database(self, name: str) -> str:
        """The database's URL for this node, through a relay of its own."""
        relay = Relay(self._replicas.primary.socket)
        self._relays[name] = await self._opened.enter_async_context(relay)
        return f"postgresql://postgres@127.0.0.1:{relay.port}/postgres"

    def _rest(self, name: str, seconds: float, wake: Callable[[], None]) -> None:
        async def rest() -> None:
            await asyncio.sleep(seconds)
            wake()

        self._after(name, rest())

    def _after(self, name: str, work: Awaitable[None]) -> None:
        async def finish() -> None:
            try:
                await work
            finally:
                del self._resting[name]

        self._resting[name] = asyncio.create_task(finish())

    def _awake(self, nodes: Sequence[Node]) -> Node | None:
        """Choose a node to hurt. One of its kind is always left alone, so that work continues."""
        awake = [found for found in nodes if found.name not in self._resting]
        return self._chance.choice(awake) if len(awake) > 1 else None
