"""A clock that stands still until a test advances it. Sleepers wake in the order of their deadlines."""

import asyncio
import heapq


class ManualClock:
    """A `Clock` that only `advance` moves."""

    def __init__(self, *, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        self._slept = asyncio.Event()

    def now_ms(self) -> int:
        return self._start_ms + int(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock has advanced by `seconds`. With 0 or less, only yield to the event loop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._number, wake_up))
        self._slept.set()
        await wake_up

    @property
    def sleeping(self) -> int:
        """The number of current sleepers, without cancelled ones."""
        return sum(not wake_up.done() for _, _, wake_up in self._sleepers)

    async def until_sleeping(self, count: int = 1) -> None:
        """Wait until `count` tasks sleep, so that `advance` reaches them."""
        while self.sleeping < count:
            self._slept.clear()
            await self._slept.wait()

    async def advance(self, seconds: float) -> None:
        """Advance the clock. Each sleeper wakes at its own deadline, and may sleep again before the next one wakes."""
        end = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, wake_up = heapq.heappop(self._sleepers)
            if wake_up.done():
                continue
            self._elapsed = max(self._elapsed, due)
            wake_up.set_result(None)
            await _settle()
        self._elapsed = end


async def _settle() -> None:
    """Let the woken task run until it waits again: one pass to wake it, and more for the tasks that it starts."""
    for _ in range(3):
        await asyncio.sleep(0)
