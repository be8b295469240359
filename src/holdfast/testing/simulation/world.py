"""The world around the simulated processes: its loop, its chance, its database, and what was seen to happen."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Claim, Key
from holdfast.testing.journal import Affected, AnyEntry
from holdfast.testing.simulation.loop import PLACE, Place, VirtualLoop
from holdfast.testing.simulation.memory.store import Carrier
from holdfast.testing.simulation.memory.tables import Database
from holdfast.testing.simulation.trace import Trace
from holdfast.testing.simulation.weather import Weather
from holdfast.testing.trial import Violation

SHAKY = 0.4
"""How many calls fail while a connection is shaky."""
TTL_SECONDS = 4.0
"""How long a lease lasts in a simulation."""


class Machine(Place):
    """A simulated process, as far as the world knows it."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(name)
        self.world = world
        self.number = world.next_number()
        self.context = Context()
        """Of everything that this process does."""
        self.cut_off_until = 0.0
        self.shakes_until = 0.0
        self.stood_still_at = -1e9
        """When it was last seen to stand still: until its next renewal it may not know what it lost."""
        self.last_words = world.chance.random() < 0.5
        """Whether what it had sent to the store when it died still takes place."""


def here() -> Machine:
    """The process whose code runs now."""
    place = PLACE.get()
    assert isinstance(place, Machine)
    return place


class World:
    """One run. Whatever happens by chance is drawn from `chance`, in an order that the loop decides."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, weather: Weather, *, keeps_trace: bool) -> None:
        self.loop = loop
        self.chance = chance
        self.weather = weather
        self.db = Database(loop.time)
        self.trace = Trace(is_kept=keeps_trace, now=loop.time)
        self.context = Context()
        """Of callbacks that belong to no process."""
        self.journal: dict[Key, list[AnyEntry]] = {}
        self.effects: dict[Key, list[Affected]] = {}
        self.violations: list[Violation] = []
        """What was seen to go wrong while it ran."""
        self.is_over = False
        self.under_way = 0
        """Calls to the store that were sent and have not landed, but for what processes do all the time."""
        self._at_work: dict[Key, list[Machine]] = {}
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def note(self, key: Key, entry: AnyEntry) -> None:
        self.journal.setdefault(key, []).append(entry)

    def fail(self, promise: str, text: str) -> None:
        if not self.is_over:
            self.trace.add("!", f"{promise}: {text}")
            self.violations.append(Violation(promise, text))

    def later(self, seconds: float, callback: Callable[..., Any], *given: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, callback, *given, context=self.context)

    # The way to the store

    def carrier(self, machine: Machine) -> Carrier:
        def carry(verb: str, run: Callable[[], Any]) -> Awaitable[Any]:
            answer: asyncio.Future[Any] = self.loop.create_future()
            if self.is_over:
                answer.set_exception(lost_connection())
            else:
                self._send(machine, verb, run, answer)
            return answer

        return carry

    def _send(self, machine: Machine, verb: str, run: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        chance, weather = self.chance, self.weather
        there, back = chance.random() * weather.latency, chance.random() * weather.latency
        if weather.stalling and chance.random() < weather.stalling:
            there += chance.uniform(0.5, 2 * TTL_SECONDS)
        takes_place, is_told = True, True
        failing = SHAKY if machine.shakes_until > self.loop.time() else weather.failing
        if failing and chance.random() < failing:
            takes_place, is_told = chance.random() < 0.5, False
        wait = machine.cut_off_until - self.loop.time()
        if wait > 0:
            there += wait
            takes_place = is_told = chance.random() < 0.5
        self.under_way += verb not in PERIODIC
        self.later(there, self._land, machine, verb, run, answer, takes_place, is_told, back)

    def _land(
        self,
        machine: Machine,
        verb: str,
        run: Callable[[], Any],
        answer: "asyncio.Future[Any]",
        takes_place: bool,
        is_told: bool,
        back: float,
    ) -> None:
        self.under_way -= verb not in PERIODIC
        if machine.state == "dead" and not machine.last_words:
            return
        result: Any = None
        error: Exception | None = None if is_told else lost_connection()
        if takes_place:
            self.db.last_write = ""
            try:
                result = run()
            except Exception as raised:
                error = raised
            if verb == "claim":
                self._judge_claims(machine, result)
        if self.trace.is_kept and verb not in QUIET:
            told = "" if error is None else "  (its sender is not told)" if takes_place else "  (does not take place)"
            done = (self.db.last_write if takes_place else "") or verb
            self.trace.add(machine.name, f"{done} -> {_short(result)}{told}")
        self.later(back, _settle, answer, result, error)

    # Who is at work

    @contextmanager
    def working(self, key: Key) -> Iterator[None]:
        """While a model answers, or a tool runs, for a session."""
        machine = here()
        self._at_work.setdefault(key, []).append(machine)
        try:
            yield
        finally:
            if machine in self._at_work[key]:
                self._at_work[key].remove(machine)

    def leaves_work(self, machine: Machine) -> None:
        """It died: nothing of it runs on."""
        for key, machines in self._at_work.items():
            self._at_work[key] = [found for found in machines if found is not machine]

    def _judge_claims(self, claimer: Machine, claims: Any) -> None:
        """Whoever had the sessions before has stopped by now, unless it stood still and could not know."""
        keys = [claim.lease.key for claim in claims or () if isinstance(claim, Claim)]
        for key, machine in [(asked, found) for asked in keys for found in self._at_work.get(asked, ())]:
            knew = self.loop.time() - machine.stood_still_at > TTL_SECONDS
            if machine is not claimer and machine.state == "running" and knew:
                self.fail("one_at_a_time", f"{claimer.name} claimed {key.session} while {machine.name} worked on it")


PERIODIC = frozenset({"renew", "tails", "claim", "catch_up"})
"""What processes and readers ask all the time, whether or not anything is left to do."""

QUIET = frozenset({"renew", "tails", "row", "waiting_items", "requests", "receipt", "catch_up", "events_after"})
"""Reads and renewals, of which a trace says nothing."""


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
    text = repr(result)
    return text if len(text) <= 160 else text[:159] + "…"
