"""An event loop with virtual time. Nothing really waits: when no callback is ready, time jumps to the next timer.

Every callback belongs to a place (a simulated process, or the world around them). Callbacks of one place keep the order
that asyncio guarantees; the seed orders those of different places, as different machines would.
"""

import asyncio
import heapq
import random
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Iterator
from contextvars import Context, ContextVar
from typing import Any, Literal

PLACE: ContextVar["Place | None"] = ContextVar("place", default=None)

MAX_ROUNDS_AT_ONCE = 20_000
MAX_ROUNDS = 300_000
"""Rounds without any progress of time, or in total, after which some code must be looping."""


class Place:
    """A process of the simulation. While it is paused, its callbacks are kept for later. Once it is dead, they never
    run: all of it is gone at once, including every `finally` and clean-up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["running", "paused", "dead"] = "running"


class Stuck(Exception):
    """No callback is ready and no timer is set; or callbacks loop without end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks one at a time, on this thread, with no real time and no I/O."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._now = 0.0
        self._rounds = 0
        self._rounds_now = 0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._timers_set = 0
        self._stopping: bool
        self._kept: dict[Place, list[Handle]] = {}
        """Callbacks of paused and dead places."""
        self._is_reviving = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All that were made: one of a dead place must not be collected, or it would clean up after all."""

    def time(self) -> float:
        return self._now

    def create_task(self, coro: Any, **named: Any) -> Any:
        task = super().create_task(coro, **named)
        self.tasks.append(task)
        return task

    def resume(self, place: Place) -> None:
        """Resume a paused place, with all callbacks that came due meanwhile."""
        if place.state == "paused":
            place.state = "running"
            self._ready.extend(self._kept.pop(place, ()))

    def revive(self) -> None:
        """From now on the dead run too, to unwind: the run is over, and nothing that they do counts."""
        self._is_reviving = True
        self._rounds = self._rounds_now = 0
        for handles in self._kept.values():
            self._ready.extend(handles)
        self._kept.clear()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """Timers of the same moment go off in the order in which they were set."""
        timer = TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        if not ready and not self._stopping:
            self._jump()
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        self._rounds += 1
        self._rounds_now += 1
        if self._rounds_now > MAX_ROUNDS_AT_ONCE or self._rounds > MAX_ROUNDS:
            raise Stuck(f"callbacks go in circles at {self._now:.3f} s")
        if len(ready) == 1:
            handle = ready.popleft()
            self._run_in(_place(handle), handle)
            return
        batch = [handle for handle in ready if not handle._cancelled]
        ready.clear()
        for place, handle in self._ordered(batch):
            self._run_in(place, handle)

    def _run_in(self, place: Place | None, handle: Handle) -> None:
        if place is not None and place.state != "running" and not self._is_reviving:
            self._kept.setdefault(place, []).append(handle)
        elif not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck(f"nobody can run, and no timer is set, at {self._now:.3f} s")
        if timers[0][0] > self._now:
            self._now = timers[0][0]
            self._rounds_now = 0

    def _ordered(self, batch: list[Handle]) -> Iterator[tuple[Place | None, Handle]]:
        """The seed chooses the place that runs next; the order within a place is fixed."""
        places = [_place(handle) for handle in batch]
        queues: dict[Place | None, list[Handle]] = {}
        for place, handle in zip(reversed(places), reversed(batch), strict=True):
            queues.setdefault(place, []).append(handle)
        if len(queues) > 1:
            self._chance.shuffle(places)
        for place in places:
            yield place, queues[place].pop()

    def _write_to_self(self) -> None:
        """There is no other thread that would have to wake this one."""

    def _process_events(self, event_list: Any) -> None:
        """There is no I/O."""


def _place(handle: Handle) -> Place | None:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PLACE)
