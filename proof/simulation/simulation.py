"""One run: a world drawn from a seed has faults for a while; then the faults end, and every promise must hold."""

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.commands.command import CommandKey
from holdfast.events.body import Body
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.events.session import SessionInfo
from holdfast.events.turn import TurnWaiting
from holdfast.server.operations import Operations, SessionOptions
from holdfast.session.bounds import Bounds
from holdfast.session.fold import NO_WORKER
from holdfast.store.store import RequestRow
from proof.crash.trial import Violation
from proof.simulation import promises, real_stores, weather
from proof.simulation.clients import Client, Ledger, Refusal
from proof.simulation.commands import Running, all_commands
from proof.simulation.guests import Guest
from proof.simulation.loop import PLACE, Stuck, VirtualLoop
from proof.simulation.machines import SCARCE_MODEL, SHARED, Fleet
from proof.simulation.memory.leases import UNPLACED_MS
from proof.simulation.memory.order import turns
from proof.simulation.memory.tables import SessionRecord
from proof.simulation.model import LOOK_UP, TOOLS
from proof.simulation.readers import Follower
from proof.simulation.real_stores import RealDatabase
from proof.simulation.trace import log_lines
from proof.simulation.world import World

OWNERS = (Owner("ann"), Owner("ben"), Owner("cleo"))
REST_SECONDS = 240.0
"""How long a world may take to come to rest after the last fault."""
TOLD_WITHIN_SECONDS = 15.0
"""The tolerance for the report that no process can run a session: clocks are wrong, and claims fail."""
DENIED_WITHIN_SECONDS = 40.0
"""How long a permission may stay open that every client has declined to decide: a client whose process died unnoticed
counts as present for half a minute."""
READERS_SECONDS = 30.0
"""How long after that readers may take to read everything."""


WINDOWS: Final = (None, None, None, 900, 1_400)
"""The window of the models of a world, in tokens; in the others conversations do not reach it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    seed: int
    violations: tuple[Violation, ...]
    trace: tuple[str, ...] = ()
    events: int = 0
    """How many events the logs of its sessions have."""
    virtual_seconds: float = 0


def run(seed: int, *, keeps_trace: bool = False, place: real_stores.Place | None = None) -> Outcome:
    """Play a seed. The same one always plays the same, unless it is played on a real database: that has its own ids."""
    chance = random.Random(seed)
    with _alone(chance), contextlib.ExitStack() as stack:
        loop = VirtualLoop(chance)
        drawn = weather.drawn(chance)
        if place is not None:
            drawn = weather.on_a_real_store(drawn, place.kind)
            stack.enter_context(place.world(loop.time))
        world = World(loop, chance, drawn, keeps_trace=keeps_trace, place=place)
        world.window = random.Random(f"window of {seed}").choice(WINDOWS)
        if isinstance(world.db, RealDatabase):
            stack.callback(world.db.close)
        loop.set_exception_handler(lambda _, about: _raised(world, about))
        play = Play(world)
        asyncio.set_event_loop(loop)
        try:
            with _listening(world):
                violations = _played(loop, play)
        finally:
            _end(world)
            asyncio.set_event_loop(None)
        sessions = play.sessions()
    lines = (*world.trace.lines(), *_logs(sessions)) if keeps_trace else ()
    return Outcome(
        seed=seed,
        violations=violations,
        trace=lines,
        events=sum(len(session.events) for session in sessions),
        virtual_seconds=loop.time(),
    )


def _played(loop: VirtualLoop, play: "Play") -> tuple[Violation, ...]:
    try:
        loop.run_until_complete(play.play())
    except Stuck as stuck:
        play.world.fail("everything_comes_to_rest", str(stuck))
    return promises.check(play.world, play.ledger, play.followers, play.guests, play.commands())


def _logs(sessions: Any) -> Iterator[str]:
    for session in sessions:
        assert isinstance(session, SessionRecord)
        writers = [f"{found.process}/{found.fence or '-'}" for found in session.written]
        yield from log_lines(session.key, session.events, writers)


class Play:
    """The course of a run, from its first process to its last reader."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = Ledger()
        self.followers: list[Follower] = []
        self.guests: list[Guest] = []
        chance = world.chance
        bounds = Bounds(
            max_waiting_messages=chance.choice((2, 5)),
            max_rounds=chance.choice((2, 100)),
            max_model_attempts=3,
            backoff_seconds=0.2,
            max_backoff_seconds=1.0,
            tool_timeout_seconds=30.0,
            cancelled_tool_seconds=world.weather.cancelled_tool_seconds,
            max_claims_without_progress=world.weather.patience,
            linger_seconds=chance.choice((0.0, 0.3)),
            snapshot_every_events=chance.choice((3, 20, 200)),
        )
        self._fleet = Fleet(world, bounds)
        owners = OWNERS[: world.weather.owners]
        self._keys = [
            Key(owners[number % len(owners)], SessionId(f"s{number + 1}")) for number in range(world.weather.sessions)
        ]
        self._until = world.weather.seconds

    def commands(self) -> dict[CommandKey, Running]:
        """Everything that was started on any machine."""
        return all_commands([*self._fleet.machines.values()])

    def sessions(self) -> list[SessionRecord]:
        """All of every session."""
        db = self.world.db
        return [found for found, _ in db.whole().values()] if isinstance(db, RealDatabase) else [*db.sessions.values()]

    async def play(self) -> None:
        world, fleet = self.world, self._fleet
        fleet.start(world.weather.processes)
        await self._create_sessions()
        self._start_followers()
        self._start_guests()
        for at, mishap in world.weather.mishaps:
            world.later(at, fleet.strike, mishap)
        clients = [self._client(f"c{number}") for number in range(1, world.weather.clients + 1)]
        living = [asyncio.create_task(client.live(self._until)) for client in clients]
        await asyncio.sleep(self._until)
        world.trace.add("", "it clears up")
        world.weather = weather.calm(world.weather)
        fleet.clear_up()
        if world.weather.node_is_lost:
            await self._do_without_a_node()
        try:
            async with asyncio.timeout(REST_SECONDS):
                await self._come_to_rest(self._client("caretaker"), living)
                await asyncio.gather(*living)
        except TimeoutError:
            self._say_what_does_not_rest(living)
        await self._read_to_the_end()

    def _say_what_does_not_rest(self, living: list[asyncio.Task[None]]) -> None:
        sessions = [_state(session) for session in self.world.db.sessions.values() if not _rests(session)]
        clients = [f"c{number} still waits" for number, client in enumerate(living, 1) if not client.done()]
        guests = [f"{guest.name} is not attached" for guest in self.guests if not guest.is_attached]
        for text in sessions or clients or guests or ["calls to the store are under way"]:
            self.world.fail("everything_comes_to_rest", text)

    def _client(self, name: str) -> Client:
        return Client(self.world, self._fleet, self.ledger, self._keys, name)

    async def _create_sessions(self) -> None:
        maker = self._client("maker")
        for key in self._keys:
            options = self._options(key)

            async def create(operations: Operations, key: Key = key, options: SessionOptions = options) -> Any:
                return await operations.create(key.owner, options, key.session)

            await maker.ask(f"create {key.session}", create)
            if key in self.world.entrusted:
                await maker.entrust(key)

    def _options(self, key: Key) -> SessionOptions:
        """The needs of the session from a process that may run it."""
        chance, weather = self.world.chance, self.world.weather
        needs_node = weather.nodes > 1 and chance.random() < 0.6
        needs_tool, needs_model = weather.gaps > 0 and chance.random() < 0.5, weather.gaps > 0 and chance.random() < 0.5
        if weather.entrusts and chance.random() < 0.6:
            self.world.entrusted.add(key)
        return SessionOptions(
            client_tools=(LOOK_UP,),
            working_directory="/work" if needs_node else SHARED if weather.commands else None,
            tools=tuple(found.name for found in TOOLS) if needs_tool else None,
            model=SCARCE_MODEL if needs_model else None,
            own_token=key in self.world.entrusted,
        )

    def _start_followers(self) -> None:
        for number in range(1, self.world.weather.readers + 1):
            key = self.world.chance.choice(self._keys)
            follower = Follower(self.world, self._fleet, key, f"r{number}")
            self.followers.append(follower)
            asyncio.create_task(follower.follow())  # noqa: RUF006  (the loop keeps all tasks)

    def _start_guests(self) -> None:
        for number in range(1, self.world.weather.guests + 1):
            guest = Guest(self.world, self._fleet, self._keys[0], f"g{number}")
            self.guests.append(guest)
            asyncio.create_task(guest.visit(self._until))  # noqa: RUF006  (the loop keeps all tasks)

    async def _do_without_a_node(self) -> None:
        """Readers of a session that no process can run are notified, once it has waited for long enough."""
        world, lost, latecomer = self.world, self._fleet.lost_node, self._client("latecomer")
        for session in self.world.db.sessions.values():
            if session.host == lost:
                await latecomer.send(session.key)
        began = {found.key: world.loop.time() for found in self._unplaced(lost)}
        await asyncio.sleep(UNPLACED_MS / 1000 + TOLD_WITHIN_SECONDS)
        waiting = {session.key for session in self._unplaced(lost)}.intersection(began)
        for session in self.sessions() if waiting else ():
            if session.key in waiting and not any(_says_nobody(event.body) for event in session.events):
                world.fail("waiting_is_told", f"{session.key.session} waits for {lost}, and its readers are not told")
        self._fleet.find_node()

    def _unplaced(self, lost: str | None) -> list[SessionRecord]:
        limit = self.world.weather.slots
        return [
            found
            for found in self.world.db.sessions.values()
            if found.host == lost
            and found.is_runnable
            and found.holder is None
            and (limit is None or turns(self.world.db, found.key.owner).slots < limit)
        ]

    async def _come_to_rest(self, caretaker: Client, living: list[asyncio.Task[None]]) -> None:
        """Answer every open request, until no work is left."""
        while not (all(client.done() for client in living) and self._is_at_rest()):
            for key in self._keys:
                if key in self.world.entrusted and not _rests(self.world.db.sessions[key]):
                    await caretaker.entrust(key)
                for asked in await caretaker.requests(key):
                    if self._is_left_to_guests(key, asked):
                        continue
                    try:
                        await caretaker.answer(key, asked)
                    except Refusal:
                        continue
            await asyncio.sleep(0.5)

    def _is_at_rest(self) -> bool:
        settled = all(guest.is_attached for guest in self.guests)
        settled = settled and not any(found.row.status == "running" for found in self.world.db.tasks.values())
        return settled and not self.world.under_way and all(map(_rests, self.world.db.sessions.values()))

    def _is_left_to_guests(self, key: Key, asked: RequestRow) -> bool:
        """Where all attached guests have declined to decide, the runtime must deny soon."""
        guests = [guest for guest in self.guests if guest.key == key]
        if asked.kind != "permission" or not guests:
            return False
        if not all(guest.is_attached and asked.request_id in guest.declined for guest in guests):
            return False
        waits = self.world.loop.time() - max(guest.declined[asked.request_id] for guest in guests)
        if waits > DENIED_WITHIN_SECONDS:
            self.world.fail(
                "declined_is_denied", f"{asked.request_id} was declined by all, and is open {waits:.1f} s on"
            )
        return waits <= DENIED_WITHIN_SECONDS

    async def _read_to_the_end(self) -> None:
        """Then wait a moment longer, to see that nothing arrives twice."""
        heads = {session.key: len(session.events) for session in self.sessions()}
        until = self.world.loop.time() + READERS_SECONDS
        while any(follower.cursor.position < heads[follower.key] for follower in self.followers):
            if self.world.loop.time() > until:
                return
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.5)


def _says_nobody(body: Body) -> bool:
    return (isinstance(body, SessionInfo) and body.info_type == NO_WORKER) or (
        isinstance(body, TurnWaiting) and body.reason == "no eligible worker"
    )


def _rests(session: SessionRecord) -> bool:
    return not (session.is_runnable or session.holder or session.turn_id or session.waiting())


def _state(session: SessionRecord) -> str:
    waiting = [found.item.key for found in session.waiting()]
    return (
        f"{session.key.session} is {session.status}, held by {session.holder}, runnable {session.is_runnable}, "
        f"its turn {session.turn_id}, its inbox {waiting}, claims {session.claims}"
    )


@contextmanager
def _alone(chance: random.Random) -> Iterator[None]:
    """Nothing in this process influences the run: neither its own randomness, nor its garbage collection."""
    state, collects = random.getstate(), gc.isenabled()
    random.seed(chance.random())
    gc.disable()
    try:
        yield
    finally:
        random.setstate(state)
        if collects:
            gc.enable()


def _raised(world: World, about: dict[str, Any]) -> None:
    world.fail("nothing_fails_by_itself", f"{about.get('message')}: {about.get('exception')!r}")


class _Listening(logging.Handler):
    """An exception in the runtime's log is a bug of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        place = PLACE.get()
        self._world.trace.add(place.name if place else "", f"({record.getMessage()})")
        if record.exc_info:
            self._world.fail("nothing_fails_by_itself", f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _listening(world: World) -> Iterator[None]:
    logger = logging.getLogger("holdfast")
    handler, level, propagates = _Listening(world), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    if world.trace.is_kept:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(level)


def _end(world: World) -> None:
    """Let every task unwind, those of dead processes included, in a world that is no longer judged."""
    world.is_over = True
    loop = world.loop
    loop.revive()
    for _ in range(50):
        left = [task for task in loop.tasks if not task.done()]
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=5))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.tasks.clear()
    loop.close()
