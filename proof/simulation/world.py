"""The world around the simulated processes: its loop, its randomness, its database, and the observed violations."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from holdfast.events.message import Sealed
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import StepEnded
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Claim, Committed, Key, Lease, Unit
from holdfast.turns.cancelled_tools import GIVE_UP_SECONDS
from proof.crash.journal import Affected, AnyEntry
from proof.crash.trial import Violation
from proof.simulation import real_stores
from proof.simulation.loop import PLACE, Place, VirtualLoop
from proof.simulation.memory.order import turns
from proof.simulation.memory.store import Call, Carrier
from proof.simulation.memory.tables import Database
from proof.simulation.real_stores import RealDatabase
from proof.simulation.trace import Trace
from proof.simulation.weather import Weather

EPSILON = 1e-6
SHAKY = 0.4
"""How many calls fail while a connection is shaky."""
TTL_SECONDS = 4.0
"""How long a lease lasts in a simulation."""


class Machine(Place):
    """A simulated process, as far as the world knows it."""

    def __init__(self, world: "World", name: str, node: str) -> None:
        super().__init__(name)
        self.world = world
        self.node = node
        self.number = world.next_number()
        self.context = Context()
        """The context in which all callbacks of this process run."""
        self.cut_off_until = 0.0
        self.shakes_until = 0.0
        self.lags_until = 0.0
        self.lag_seconds = 0.0
        """How late it receives the responses to its calls, while it lags."""
        self.stood_still_at = -1e9
        """When it last stalled: until its next renewal it may not know that it lost a lease."""
        self.last_words = world.chance.random() < 0.5
        """Whether calls that it had sent to the store when it died still take place."""
        self.lease_of: Callable[[Key], Lease | None] = lambda key: None
        """The lease by which it runs a session now, as its worker knows."""


def here() -> Machine:
    """The process whose code runs now."""
    place = PLACE.get()
    assert isinstance(place, Machine)
    return place


class Work:
    """A model call or a tool call that runs for a session in one process."""

    __slots__ = ("cancelled_at", "grace_seconds", "lease", "machine")

    def __init__(self, machine: Machine, lease: Lease | None, grace_seconds: float) -> None:
        self.machine = machine
        self.lease = lease
        self.grace_seconds = grace_seconds
        """How long its session is kept for it once it was cancelled."""
        self.cancelled_at: float | None = None
        """When it was first cancelled and still ran on."""


class World:
    """One run. Every random choice is drawn from `chance`, in an order that the loop decides."""

    def __init__(
        self,
        loop: VirtualLoop,
        chance: random.Random,
        weather: Weather,
        *,
        keeps_trace: bool,
        place: real_stores.Place | None = None,
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.weather = weather
        self.db: Database = Database(loop.time) if place is None else RealDatabase(loop.time, place)
        self.trace = Trace(is_kept=keeps_trace, now=loop.time)
        self.context = Context()
        """The context of callbacks that belong to no process."""
        self.journal: dict[Key, list[AnyEntry]] = {}
        self.effects: dict[Key, list[Affected]] = {}
        self.window: int | None = None
        """The window of its models in tokens; None for the usual one, which no conversation reaches."""
        self.entrusted: set[Key] = set()
        """Sessions that need a token of their client."""
        self.violations: list[Violation] = []
        """Violations observed while it ran."""
        self.is_over = False
        self.under_way = 0
        """Calls in flight to the store, without those that processes repeat all the time."""
        self._at_work: dict[Key, list[Work]] = {}
        self._held: dict[Key, tuple[Machine, Lease]] = {}
        """The last claim of each session."""
        self._claims_without_progress: dict[Key, int] = {}
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def note(self, key: Key, entry: AnyEntry) -> None:
        self.journal.setdefault(key, []).append(entry)

    def fail(self, promise: str, text: str) -> None:
        if not self.is_over:
            self.trace.add("!", f"{promise}: {text}")
            self.violations.append(Violation(promise, text))

    def last_progress(self, key: Key) -> tuple[int, str]:
        """The position of the last event that was written under a lease, and the process that wrote it. A real store
        does not say which process wrote an event."""
        session = self.db.sessions.get(key)
        written = [] if session is None or isinstance(self.db, RealDatabase) else session.written
        for position in range(len(written), 0, -1):
            if written[position - 1].fence is not None:
                return position, written[position - 1].process
        return 0, ""

    def later(self, seconds: float, callback: Callable[..., Any], *given: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, callback, *given, context=self.context)

    # The way to the store

    def carrier(self, machine: Machine) -> Carrier:
        def carry(call: Call) -> Awaitable[Any]:
            answer: asyncio.Future[Any] = self.loop.create_future()
            if self.is_over:
                answer.set_exception(lost_connection())
            else:
                self._send(machine, call, answer)
            return answer

        return carry

    def _send(self, machine: Machine, call: Call, answer: "asyncio.Future[Any]") -> None:
        if call.lease is not None:
            self._judge_release(machine, call.lease)
        chance, weather = self.chance, self.weather
        there, back = chance.random() * weather.latency, chance.random() * weather.latency
        if weather.stalling and chance.random() < weather.stalling:
            there += chance.uniform(0.5, 2 * TTL_SECONDS)
        if weather.lateness and chance.random() < weather.lateness:
            back += chance.uniform(0.5, 2 * TTL_SECONDS)
        if machine.lags_until > self.loop.time():
            back += machine.lag_seconds
        takes_place, is_told = True, True
        failing = SHAKY if machine.shakes_until > self.loop.time() else weather.failing
        if failing and chance.random() < failing:
            takes_place, is_told = chance.random() < 0.5, False
        wait = machine.cut_off_until - self.loop.time()
        if wait > 0:
            there += wait
            takes_place = is_told = chance.random() < 0.5
        self.under_way += call.verb not in PERIODIC
        self.later(there, self._land, machine, call, answer, takes_place, is_told, back)

    def _land(
        self,
        machine: Machine,
        call: Call,
        answer: "asyncio.Future[Any]",
        takes_place: bool,
        is_told: bool,
        back: float,
    ) -> None:
        self.under_way -= call.verb not in PERIODIC
        if machine.state == "dead" and not machine.last_words:
            return
        result: Any = None
        error: Exception | None = None if is_told else lost_connection()
        if takes_place:
            self.db.last_write = ""
            try:
                result = call.run()
            except Exception as raised:
                error = raised
            self._judge(machine, call, result)
        if self.trace.is_kept and call.verb not in QUIET:
            told = "" if error is None else "  (its sender is not told)" if takes_place else "  (does not take place)"
            done = (self.db.last_write if takes_place else "") or call.verb
            late = f"  (its sender is told in {back:.2f} s)" if back > self.weather.latency else ""
            self.trace.add(machine.name, f"{done} -> {_short(result)}{told}{late}")
        self.later(back, _settle, answer, result, error)

    # Work in progress

    @contextmanager
    def working(self, key: Key, grace_seconds: float = GIVE_UP_SECONDS) -> Iterator[Work]:
        """Record a model's answer or a tool's run for a session as work in progress."""
        machine = here()
        work = Work(machine, machine.lease_of(key), grace_seconds)
        self._judge_start(key, work)
        self._at_work.setdefault(key, []).append(work)
        try:
            yield work
        finally:
            if work in self._at_work[key]:
                self._at_work[key].remove(work)

    async def take_time(self, work: Work, seconds: float, *, deaf_seconds: float) -> None:
        """Sleep for a model or a tool. A deaf one runs on for this long after its first cancellation, and then as if
        nothing had happened."""
        until = self.loop.time() + seconds
        while (left := until - self.loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if self.is_over or not deaf_seconds:
                    raise
                if work.cancelled_at is None:
                    work.cancelled_at = self.loop.time()
                    until = work.cancelled_at + deaf_seconds
                    self.trace.add(work.machine.name, f"a call is deaf to its cancellation for {deaf_seconds:.2f} s")

    def leaves_work(self, machine: Machine) -> None:
        """It died: none of its work continues."""
        for key, works in self._at_work.items():
            self._at_work[key] = [found for found in works if found.machine is not machine]

    def fail_over(self, running: Iterable[Machine]) -> None:
        """All leases end. A process learns it when it renews; until then it can't know, like one that stood still."""
        self.trace.add("database", "fails over: all leases end")
        for process in self.db.processes.values():
            process.expires_at = min(process.expires_at, self.db.now())
        for machine in running:
            machine.stood_still_at = self.loop.time()

    # Promises checked during the run

    def _judge_release(self, releaser: Machine, lease: Lease) -> None:
        """Work that a process cancelled before it releases a session has ended, or had its time to end."""
        if self._held.get(lease.key) != (releaser, lease):
            return  # Late: the session was claimed anew.
        for work in self._at_work.get(lease.key, ()):
            if work.machine is releaser and self._is_within_grace(work):
                self.fail(
                    "released_when_ended", f"{releaser.name} lets go of {lease.key.session}, and what it started runs"
                )

    def _judge_start(self, key: Key, work: Work) -> None:
        """A process that claims a session again starts nothing for it before the work of its earlier claims has ended,
        or had its time to end."""
        for earlier in self._at_work.get(key, ()):
            is_earlier = earlier.machine is work.machine and earlier.lease != work.lease
            if is_earlier and self._is_within_grace(earlier):
                self.fail("one_at_a_time", f"{work.machine.name} works on {key.session} twice, by two of its claims")

    def _is_within_grace(self, work: Work) -> bool:
        """Whether the work must be waited for: it was not cancelled, or has not had its time to end yet."""
        given = None if work.cancelled_at is None else self.loop.time() - work.cancelled_at
        return given is None or given < work.grace_seconds - EPSILON

    def _judge_claims(self, claimer: Machine, claims: list[Claim]) -> None:
        for claim in claims:
            self._judge_one_at_a_time(claimer, claim.lease.key)
            self._judge_count(claim)
            self._judge_place(claimer, claim)
            self._held[claim.lease.key] = (claimer, claim.lease)
        self._judge_slots(claims)

    def _judge_one_at_a_time(self, claimer: Machine, key: Key) -> None:
        """The previous holder of the session has stopped by now, or has at least cancelled its deaf work, unless it
        stalled and could not know."""
        for work in self._at_work.get(key, ()):
            machine = work.machine
            knew = self.loop.time() - machine.stood_still_at > TTL_SECONDS
            is_on = machine is not claimer and machine.state == "running" and work.cancelled_at is None
            if is_on and knew:
                self.fail("one_at_a_time", f"{claimer.name} claimed {key.session} while {machine.name} worked on it")

    def _judge_count(self, claim: Claim) -> None:
        """A claim counts against a session only until the session makes progress."""
        key = claim.lease.key
        counted = self._claims_without_progress[key] = self._claims_without_progress.get(key, 0) + 1
        if claim.claims_without_progress > counted:
            told = f"{claim.claims_without_progress} claims without progress were counted, {counted} there were"
            self.fail("progress_clears_the_count", f"{key.session}: {told}")

    def _judge_place(self, claimer: Machine, claim: Claim) -> None:
        """A session whose files are on one machine runs on no other."""
        host = claim.loaded.row.host if claim.loaded is not None else None
        if claim.eligible and host not in (None, claimer.node):
            self.fail("run_where_its_files_are", f"{claimer.name} on {claimer.node} claimed {claim.lease.key.session}")

    def _judge_slots(self, claims: list[Claim]) -> None:
        """No owner has more turns running than slots, except turns that are only claimed to be ended."""
        limit = self.weather.slots
        if limit is None:
            return
        for owner in dict.fromkeys(claim.lease.key.owner for claim in claims if claim.eligible):
            beside = sum(not claim.eligible and claim.lease.key.owner == owner for claim in claims)
            taken = turns(self.db, owner).slots - beside
            if taken > limit:
                self.fail("owners_keep_to_their_slots", f"{owner} has {taken} turns running, and {limit} slots")

    def _note_progress(self, unit: Unit) -> None:
        bodies = [event.body for event in unit.events]
        is_sealing = any(isinstance(body, Sealed) for body in bodies)
        if not is_sealing and any(isinstance(body, StepEnded | ToolCompleted) for body in bodies):
            self._claims_without_progress.pop(unit.key, None)

    def _judge(self, machine: Machine, call: Call, result: Any) -> None:
        """The effect of a call, at the moment at which it took place."""
        match call.verb:
            case "claim" if result:
                self._judge_claims(machine, result)
            case "commit" if isinstance(result, Committed) and call.unit is not None:
                self._note_progress(call.unit)
                if isinstance(self.db, RealDatabase):
                    self.db.note_written(call.unit, result.head, machine.name)
            case "release" if result is True and call.lease is not None and call.how != "failed":
                self._claims_without_progress.pop(call.lease.key, None)
            case _:
                pass


PERIODIC = frozenset({"renew", "tails", "claim", "catch_up"})
"""Calls that processes and readers repeat all the time, even when no work is left."""

QUIET = frozenset({"renew", "tails", "row", "waiting_items", "requests", "receipt", "catch_up", "events_after"})
"""Reads and renewals, which a trace leaves out."""


def lost_connection() -> StoreUnavailable:
    return StoreUnavailable("store_failed", "the connection to the database was lost")


def _settle(answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _short(result: object) -> str:
    text = repr(sorted(result) if isinstance(result, frozenset) else result)  # Sets have no order of their own.
    return text if len(text) <= 160 else text[:159] + "…"
