"""`holdfast` in a process whose clock leaps ahead by a minute at each SIGUSR1, as after the sleep of a machine."""

import asyncio
import signal
import sys

from holdfast import app
from holdfast.cli.main import main
from holdfast.store.clock import SystemClock

LEAP_SECONDS = 60.0


class LeapingClock(SystemClock):
    """The machine's own clocks, and the leaps."""

    def __init__(self) -> None:
        self._leapt = 0.0
        self._leaps = asyncio.Event()

    def now_ms(self) -> int:
        return super().now_ms() + int(self._leapt * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._leapt

    async def sleep(self, seconds: float) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._leap)
        due = self.monotonic() + seconds
        while (left := due - self.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._leaps.wait(), left)
            except TimeoutError:
                return
        await asyncio.sleep(0)

    def _leap(self) -> None:
        self._leapt += LEAP_SECONDS
        leaps, self._leaps = self._leaps, asyncio.Event()
        leaps.set()


if __name__ == "__main__":
    app.SystemClock = LeapingClock  # type: ignore[attr-defined]
    sys.exit(main())
