"""Time that stands still until a test moves it. Whoever sleeps is woken in the order in which their time comes."""

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
        """Until the clock was advanced so far. Sleeping for no time only gives way."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._number, waking))
        self._slept.set()
        await waking

    @property
    def sleeping(self) -> int:
        """How many sleep now. Those that were cancelled don't."""
        return sum(not waking.done() for _, _, waking in self._sleepers)

    async def until_sleeping(self, count: int = 1) -> None:
        """Wait until so many sleep, so that advancing reaches them."""
        while self.sleeping < count:
            self._slept.clear()
            await self._slept.wait()

    async def advance(self, seconds: float) -> None:
        """Move time on. Each sleeper wakes at its own moment, and may sleep again before the next one wakes."""
        end = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waking = heapq.heappop(self._sleepers)
            if waking.done():
                continue
            self._elapsed = max(self._elapsed, due)
            waking.set_result(None)
            await _settle()
        self._elapsed = end


async def _settle() -> None:
    """Let whoever was woken run until it waits again: once to wake, once for what it set off at once."""
    for _ in range(3):
        await asyncio.sleep(0)
