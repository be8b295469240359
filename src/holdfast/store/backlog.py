"""The bounded backlog of a process's writer: jobs that were handed in and have no outcome yet.

When the backlog is full, a unit waits for room: a holder has few of them, and a refusal would cost it the session.
Every other client write to the one writer of SQLite is refused with `store_busy`, to be retried: there may be many
clients, and waiting ones would keep all that they sent in memory. Lease and presence writes are small and few, and
always pass: without them a busy process would lose its leases. (On PostgreSQL only units share a writer; other writes
wait for a connection, and not for long.)
"""

import asyncio
from collections import deque
from typing import Final

from holdfast.store.errors import StoreUnavailable

MAX_JOBS: Final = 20_000
"""Twenty full batches: some seconds of work for the slowest disk."""
MAX_BYTES: Final = 256 << 20
"""Bytes of encoded jobs. They are in memory in addition to the senders' own copies."""


class Backlog:
    """Counts waiting jobs and their bytes. Used on the event loop only."""

    def __init__(self, *, max_jobs: int = MAX_JOBS, max_bytes: int = MAX_BYTES) -> None:
        self.jobs = 0
        self.bytes = 0
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """False while other jobs wait for room, so that jobs keep their order. A single job may exceed the bounds."""
        return not self._waiting and self.jobs < self._max_jobs and self.bytes < self._max_bytes

    def add(self, size: int) -> None:
        self.jobs += 1
        self.bytes += size

    def remove(self, jobs: int, size: int) -> None:
        """`jobs` jobs of `size` bytes together have an outcome. Called once for a whole batch, which keeps it cheap."""
        self.jobs -= jobs
        self.bytes -= size
        if self._waiting:
            self._call_next()

    def clear(self) -> None:
        """The writer has failed, and every job with it: those that wait for room need wait no longer."""
        self.jobs = self.bytes = 0
        self._call_next()

    def _call_next(self) -> None:
        is_below = self.jobs < self._max_jobs and self.bytes < self._max_bytes
        if is_below and self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)  # The waiter removes itself from the line, and calls the next one.

    async def room(self) -> None:
        """Returns once there is room; first come, first served. The caller then adds its job without another await."""
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
