"""The supervisor's event loop: descriptors, timers and signals in one thread, which sleeps while nothing happens.

It uses plain selectors and not asyncio, to save memory: the supervisor stays loaded for as long as a command runs.
"""

import heapq
import os
import selectors
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

Callback = Callable[[], None]

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class Timer:
    """A callback to run later, unless it is cancelled."""

    def __init__(self, callback: Callback) -> None:
        self._callback: Callback | None = callback

    def cancel(self) -> None:
        self._callback = None

    @property
    def is_waiting(self) -> bool:
        return self._callback is not None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class SupervisorLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._on_signal: dict[int, Callback] = {}
        self._stopping = False
        self._signals, self._waking = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(self._waking, False)
        self.watch(self._signals, READ, lambda _: self._signalled())

    def watch(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None:
        """Calls back with the ready events, as often as they occur. Replaces an earlier callback of the descriptor."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, callback)
        else:
            self._selector.register(descriptor, events, callback)

    def ignore(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def after(self, seconds: float, callback: Callback) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def on_signal(self, number: signal.Signals, callback: Callback) -> None:
        """Installs a handler. The signal must not be ignored instead: commands inherit ignored signals."""
        self._on_signal[number] = callback
        signal.signal(number, _noted)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

    def forget_signals(self) -> None:
        """Resets signal handling in a child before it becomes another program: its signals must not wake the
        supervisor."""
        signal.set_wakeup_fd(-1)
        for number in self._on_signal:
            signal.signal(number, signal.SIG_DFL)

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._pause()):
                # An earlier callback may have closed the descriptor, and its number may already be reused.
                if self._selector.get_map().get(key.fd) is key:
                    self._guarded(partial(key.data, events))
            self._fire()

    def _pause(self) -> float | None:
        while self._timers and not self._timers[0][2].is_waiting:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._guarded(heapq.heappop(self._timers)[2].fire)

    def _signalled(self) -> None:
        for number in set(os.read(self._signals, 4096)):
            if number in self._on_signal:
                self._on_signal[number]()

    def _guarded(self, callback: Callable[[], Any]) -> None:
        """Logs an exception instead of raising it: the failure of one command must not end the others."""
        try:
            callback()
        except Exception:
            traceback.print_exc()


def _noted(number: int, frame: object) -> None:
    """Does nothing: the loop handles the signal when the wake-up descriptor becomes readable."""
