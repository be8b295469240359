"""Processes: each has its own clock, its own way to the store, its own hints, and the real worker and operations."""

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from holdfast.commands.command import Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.events.ids import Key
from holdfast.events.inbox import INBOX_VERSION
from holdfast.models.choice import ModelChoice
from holdfast.models.credentials import Credentials
from holdfast.models.errors import UnknownModel
from holdfast.models.model import Model
from holdfast.server.operations import Operations
from holdfast.server.presence import Presence
from holdfast.session.bounds import Bounds
from holdfast.store.fences import LONGEST_STEP
from holdfast.store.store import Lease, Store
from holdfast.store.turn_limits import TurnLimits
from holdfast.tasks.desk import TaskDesk
from holdfast.tasks.keeper import TaskKeeper
from holdfast.tasks.shell import Shell
from holdfast.tools.registry import Registry
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker
from proof.simulation.commands import RUN, SimulatedCommands
from proof.simulation.hints import Network, SimulatedLive
from proof.simulation.loop import PLACE
from proof.simulation.memory.store import MemoryStore
from proof.simulation.model import TOOLS, SimulatedModel
from proof.simulation.real_stores import DistantStore, RealDatabase
from proof.simulation.weather import Mishap
from proof.simulation.world import TTL_SECONDS, Machine, World

PACE = Pace(
    lease_ttl_seconds=TTL_SECONDS,
    renew_every_seconds=1.0,
    lease_margin_seconds=1.0,
    claim_every_seconds=1.0,
    listen_every_seconds=0.6,
    max_sessions=10,
)
STARTED_MS = 1_700_000_000_000
NODES = ("n1", "n2")
SHARED = "/shared"
"""A folder that every machine has."""
SCARCE_TOOL = "put_line"
SCARCE_MODEL = "rare"
"""The tools or models that a process may lack."""
SCARCE_KIND = "rewind"
"""The kind of inbox item that the release before does not know."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which a process starts."""

    node: str
    lacks_tool: bool = False
    lacks_model: bool = False
    is_old: bool = False

    @property
    def is_complete(self) -> bool:
        return not (self.lacks_tool or self.lacks_model or self.is_old)


class SkewedClock:
    """A process's own clock: it may be wrong, and go too fast or too slowly."""

    def __init__(self, world: World, *, rate: float, wrong_ms: int) -> None:
        self._loop = world.loop
        self._rate = rate
        self._wrong_ms = wrong_ms

    def now_ms(self) -> int:
        return STARTED_MS + self._wrong_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


def _unseen(path: str, **how: bool) -> None:
    """Folders of machines that are made up are those of no machine."""


class Process:
    """One start of a process, from its opening of the store to its end."""

    def __init__(
        self, world: World, network: Network, bounds: Bounds, name: str, role: Role, commands: SimulatedCommands | None
    ) -> None:
        self._world = world
        self.role = role
        chance, skew = world.chance, world.weather.skew
        self.machine = Machine(world, name, role.node)
        self.machine.context.run(PLACE.set, self.machine)
        clock = SkewedClock(world, rate=1 + chance.uniform(-skew, skew), wrong_ms=chance.choice((0, 0, -3000, 3000)))
        tools = TOOLS if commands is None else (*TOOLS, RUN)
        registry = Registry(found for found in tools if not (role.lacks_tool and found.name == SCARCE_TOOL))
        self.store = self._opened(clock, registry)
        self._ids = iter(range(1, 1_000_000))
        live = network.join(self.machine)
        self.operations = Operations(
            store=self.store,
            live=live,
            clock=clock,
            bounds=bounds,
            node=role.node,
            host=role.node,
            shared_directories=(SHARED,),
            producer="simulation",
            new_id=self._new_id,
            identify=_unseen,
        )
        self.presence = Presence(self.operations, self.store, clock)
        self.credentials = Credentials(self.store, wake=live.announce)
        self._keeper: TaskKeeper | None = None
        shell = self._shell(commands, live, clock) if commands is not None else None
        self._worker = Worker(
            store=self.store,
            live=live,
            clock=clock,
            bounds=bounds,
            pace=PACE,
            node=role.node,
            registry=registry,
            models=self._model,
            credentials=self.credentials,
            shell=shell,
            new_id=self._new_id,
            identify=_unseen,
        )
        self.machine.lease_of = self._lease_of
        self._on_end: list[Callable[[], None]] = []
        self.is_stopping = False

    def runs(self, key: Key) -> bool:
        """Whether a run of the session, however late, has not ended here."""
        return any(lease.key == key for lease in self._worker.holds._running)

    def _lease_of(self, key: Key) -> Lease | None:
        holds = reversed(self._worker.holds._running.values())
        return next((hold.lease for hold in holds if hold.lease.key == key and hold.loop is not None), None)

    def _shell(self, commands: SimulatedCommands, live: SimulatedLive, clock: SkewedClock) -> Shell:
        machine = cast(Commands, commands)
        desk = TaskDesk(self.store, machine, live, clock, host=commands.node, redaction=Redaction())
        self._keeper = TaskKeeper(self.store, machine, desk, live, clock)
        return Shell(machine, desk, isolation=Unconfined(), limits=Limits(), look=self._keeper.look)

    def _opened(self, clock: SkewedClock, registry: Registry) -> Store:
        world, role, name = self._world, self.role, self.machine.name
        limits = TurnLimits(running=world.weather.slots, in_flight=world.weather.in_flight)
        carry = world.carrier(self.machine)
        if isinstance(world.db, RealDatabase):
            store = world.db.open(name, node=role.node, tools=registry.names(), clock=clock, limits=limits)
            return cast(Store, DistantStore(world.db, store, name, clock, carry))
        return MemoryStore(
            world.db,
            node=role.node,
            tools=registry.names(),
            clock=clock,
            process=name,
            carry=carry,
            limits=limits,
            inbox_version=INBOX_VERSION - role.is_old,
            unknown_kinds=frozenset({SCARCE_KIND}) if role.is_old else frozenset(),
            fence_step=functools.partial(random.Random(f"fences of {name}").randrange, 1, LONGEST_STEP),
        )

    def _new_id(self) -> str:
        return f"{self.machine.name}-{next(self._ids)}"

    async def _model(self, choice: ModelChoice) -> Model:
        if self.role.lacks_model and choice.name == SCARCE_MODEL:
            raise UnknownModel(choice.name, f"{choice.name} can't be used here")
        if choice.key in self._world.entrusted:
            await self.credentials.github_token(choice.key)
        return SimulatedModel(self._world, choice.key)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def is_up(self) -> bool:
        return self.machine.state != "dead"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as this process: it stands still, and dies, with it."""
        task: asyncio.Task[Any] = self._world.loop.create_task(work, context=self.machine.context)
        return task

    def when_it_ends(self, told: Callable[[], None]) -> None:
        self._on_end.append(told)

    def start(self) -> None:
        self._world.trace.add(self.name, "starts")
        self.spawn(self._worker.__aenter__())
        if self._keeper is not None:
            self.spawn(self._keeper.__aenter__())

    def crash(self) -> None:
        self._world.trace.add(self.name, "dies")
        self.machine.state = "dead"
        self._world.leaves_work(self.machine)
        if isinstance(self._world.db, RealDatabase):
            self._world.db.died(self.name)
        noted = self._world.db.processes.get(self.name)
        if noted is not None and self._world.weather.death_is_seen:
            noted.is_dead = True
        self._ended()

    def pause(self, seconds: float) -> None:
        self._world.trace.add(self.name, f"stands still for {seconds:.2f} s")
        self.machine.state = "paused"
        self._world.later(seconds, self.resume)

    def resume(self) -> None:
        if self.machine.state == "paused":
            self._world.trace.add(self.name, "goes on")
            self.machine.stood_still_at = self._world.loop.time()
            self._world.loop.resume(self.machine)

    def cut_off(self, seconds: float) -> None:
        self._world.trace.add(self.name, f"can't reach the store for {seconds:.2f} s")
        self.machine.cut_off_until = self._world.loop.time() + seconds

    def shake(self, seconds: float) -> None:
        self._world.trace.add(self.name, f"has a shaky connection for {seconds:.2f} s")
        self.machine.shakes_until = self._world.loop.time() + seconds

    def fade(self, seconds: float, lag_seconds: float, away_seconds: float) -> None:
        """First the answers come late, then nothing gets through: a line that fails by and by."""
        self._world.trace.add(self.name, f"hears all answers {lag_seconds:.2f} s late, for {seconds:.2f} s")
        self.machine.lags_until, self.machine.lag_seconds = self._world.loop.time() + seconds, lag_seconds
        self._world.later(seconds, self._cut_off_unless_clear, away_seconds)

    def _cut_off_unless_clear(self, seconds: float) -> None:
        if self.machine.lags_until and self.is_up:
            self.cut_off(seconds)

    async def stop(self, grace_seconds: float) -> None:
        """In good order, as a rolling restart does."""
        self.is_stopping = True
        self._world.trace.add(self.name, "is told to stop")
        await self._worker.stop(grace_seconds=grace_seconds)
        if self._keeper is not None:
            await self._keeper.stop()
        await self.store.close()
        self._world.trace.add(self.name, "has stopped")
        self.machine.state = "dead"
        self._ended()

    def _ended(self) -> None:
        for told in self._on_end:
            told()
        self._on_end.clear()


class Fleet:
    """The processes of a run: the running ones, their starts and their ends."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        self._world = world
        self._bounds = bounds
        self._network = Network(world)
        self._starts = 0
        self.lost_node: str | None = None
        self.machines = {node: SimulatedCommands(world, node) for node in NODES if world.weather.commands}
        self.processes: list[Process] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self.start_one()

    def start_one(self, role: Role | None = None) -> None:
        if self._world.is_over:
            return
        self._starts += 1
        role = role or self._drawn(NODES[self._starts % self._world.weather.nodes])
        commands = self.machines.get(role.node)
        process = Process(self._world, self._network, self._bounds, f"p{self._starts}", role, commands)
        self.processes.append(process)
        process.start()

    def _drawn(self, node: str) -> Role:
        chance, weather = self._world.chance, self._world.weather
        return Role(
            node=node,
            lacks_tool=chance.random() < weather.gaps,
            lacks_model=chance.random() < weather.gaps,
            is_old=chance.random() < weather.old,
        )

    def _start_after(self, ended: Process) -> None:
        """In the place of one that ended: as another release, perhaps, and on a machine that has another name now."""
        chance, weather = self._world.chance, self._world.weather
        node = ended.role.node
        if weather.renaming and chance.random() < weather.renaming:
            node = NODES[chance.randrange(weather.nodes)]
        if node != self.lost_node:
            self.start_one(self._drawn(node))

    def complete(self) -> None:
        """Make sure that every session can be run somewhere."""
        nodes = [node for node in NODES[: self._world.weather.nodes] if node != self.lost_node]
        for node in nodes:
            staying = [process.role for process in self.up() if not process.is_stopping]
            if not any(role.is_complete and role.node == node for role in staying):
                self.start_one(Role(node=node))

    def lose_node(self, node: str) -> None:
        """All of a machine is gone, and none comes up there."""
        self.lost_node = node
        for process in [found for found in self.up() if found.role.node == node]:
            process.crash()

    def find_node(self) -> None:
        self.lost_node = None
        self.complete()

    def up(self) -> list[Process]:
        self.processes = [process for process in self.processes if process.is_up]
        return self.processes

    def strike(self, mishap: Mishap) -> None:
        """Inject a fault into one of them, or into the database. An ended process is restarted, sooner or later."""
        chance, up = self._world.chance, [each for each in self.up() if each.machine.state == "running"]
        if not up:
            return
        process = chance.choice(up)
        match mishap:
            case "crash":
                process.crash()
                self._world.later(chance.uniform(0.05, 3.0), self._start_after, process)
            case "pause":
                process.pause(chance.uniform(0.1, 2.5 * TTL_SECONDS))
            case "cut off":
                process.cut_off(chance.uniform(0.5, 2.5 * TTL_SECONDS))
            case "shake":
                process.shake(chance.uniform(0.5, 2 * TTL_SECONDS))
            case "fade":
                away_seconds = chance.uniform(0.5, 1.5) * TTL_SECONDS
                process.fade(chance.uniform(0.5, 5.0), chance.uniform(0.8, 2.2), away_seconds)
            case "failover":
                self._world.fail_over(each.machine for each in up)
            case "restart" if process.is_stopping:
                pass
            case "restart":
                process.spawn(process.stop(chance.choice((0.0, 0.5, 2.0))))
                self._world.later(chance.uniform(0.05, 1.0), self._start_after, process)

    def clear_up(self) -> None:
        """Resume every stalled process, and restore every connection to the store."""
        for process in self.up():
            process.machine.cut_off_until = process.machine.shakes_until = process.machine.lags_until = 0.0
            process.resume()
        if self._world.weather.node_is_lost:
            self.lose_node(self._world.chance.choice(NODES[: self._world.weather.nodes]))
        self.complete()
