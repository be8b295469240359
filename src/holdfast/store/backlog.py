"""What was handed in to a process's writer and has no outcome yet, within bounds.

Over them a unit waits for room: a holder has few of them, and a refusal would cost it the session. Whatever else
clients ask of the one writer of SQLite is refused with `store_busy`, to be tried again: clients may be many, and would
wait with all that they sent. Leases and presence are small and few, and pass: without them a busy process would lose
what it holds. (On PostgreSQL only units share a writer; other writes wait for a connection, and not for long.)
"""

import asyncio
from collections import deque
from typing import Final

from holdfast.store.errors import StoreUnavailable

MAX_JOBS: Final = 20_000
"""Twenty full batches: some seconds of work for the slowest disk."""
MAX_BYTES: Final = 256 << 20
"""Encoded, and so in memory once more than their senders have it."""


class Backlog:
    """Used on the event loop only."""

    def __init__(self, *, max_jobs: int = MAX_JOBS, max_bytes: int = MAX_BYTES) -> None:
        self.jobs = 0
        self.bytes = 0
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """Not while others wait for it, so that what is handed in keeps its order. One job alone may be larger."""
        return not self._waiting and self.jobs < self._max_jobs and self.bytes < self._max_bytes

    def add(self, size: int) -> None:
        self.jobs += 1
        self.bytes += size

    def remove(self, jobs: int, size: int) -> None:
        """So many jobs of so many bytes together have an outcome: a whole batch at once, to keep it cheap."""
        self.jobs -= jobs
        self.bytes -= size
        if self._waiting:
            self._call_next()

    def _call_next(self) -> None:
        is_below = self.jobs < self._max_jobs and self.bytes < self._max_bytes
        if is_below and self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)  # It leaves the line by itself, and calls the next.

    async def room(self) -> None:
        """Returns once there is room; first come, first served. Whoever waits adds its job at once."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            self._waiting.remove(turn)
            asyncio.get_running_loop().call_soon(self._call_next)

    def refuse_if_full(self) -> None:
        if not self.has_room:
            raise StoreUnavailable("store_busy", "More is waiting to be written than this process can hold. Try again.")
