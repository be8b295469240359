"""The one task of this process that commits units. Whatever was handed in while the last batch was on its way becomes
the next; each unit has an outcome of its own, told only after the commit."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.store.death import writer_died
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import Lane
from holdfast.store.postgres.failures import is_everybodys, is_lost, is_try_again, unavailable
from holdfast.store.postgres.units import Group, UnitJob, Units, waves

log = logging.getLogger(__name__)

BATCH_LIMIT: Final = 1000
"""Units in one batch: bounds how long the first of them waits for the last."""
BATCH_BYTES: Final = 8 << 20
"""What they may come to; one unit alone may be larger."""


class Flusher:
    """The task, its connection and its queue. `committed` hears of every batch that wrote something; `died` is called
    if the task fails, and no unit is left waiting."""

    def __init__(
        self,
        lane: Lane,
        units: Units,
        committed: Callable[[], None],
        died: Callable[[StoreUnavailable], None],
    ) -> None:
        self._lane = lane
        self._units = units
        self._committed = committed
        self._died = died
        self._death: StoreUnavailable | None = None
        self._in_hand: list[UnitJob] = []
        """Taken from the queue and not yet told of an outcome."""
        self._queue: deque[UnitJob] = deque()
        self._wanted = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="holdfast-flusher")

    def submit(self, job: UnitJob) -> None:
        self._queue.append(job)
        self._wanted.set()
        if self._death is not None:
            self._fail_all(self._death)

    async def stop(self) -> None:
        """End once all that was handed in is committed."""
        self._stopping = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Cancelled is the task only with its event loop, which nothing has to be told of."""
        try:
            await self._flush_until_stopped()
        except BaseException as error:
            self._death = writer_died()
            self._fail_all(self._death)
            if not isinstance(error, asyncio.CancelledError):
                log.critical("the task that commits failed; this process can't write any more", exc_info=error)
                self._died(self._death)
            raise

    def _fail_all(self, death: StoreUnavailable) -> None:
        jobs = [*self._in_hand, *self._queue]
        self._in_hand = []
        self._queue.clear()
        for job in jobs:
            job.error = death
            job.settle()

    async def _flush_until_stopped(self) -> None:
        while self._queue or not self._stopping:
            if not self._queue:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            jobs = self._in_hand = self._take()
            try:
                await self._flush(jobs)
            except Exception as error:
                _fail(jobs, error)
            for job in jobs:
                job.settle()
            self._in_hand = []

    def _take(self) -> list[UnitJob]:
        if len(self._queue) <= BATCH_LIMIT and sum([job.size for job in self._queue]) <= BATCH_BYTES:
            whole = list(self._queue)
            self._queue.clear()
            return whole
        jobs = [self._queue.popleft()]
        size = jobs[0].size
        while self._queue and len(jobs) < BATCH_LIMIT and size + self._queue[0].size <= BATCH_BYTES:
            jobs.append(self._queue.popleft())
            size += jobs[-1].size
        return jobs

    async def _flush(self, jobs: Sequence[UnitJob]) -> None:
        for wave in waves(jobs):
            await self._write(wave)

    async def _write(self, groups: Sequence[Group]) -> None:
        """A batch that failed is tried again unit by unit, unless it may be on disk, or each would fail the same."""
        error = await self._try(groups)
        jobs = [job for group in groups for job in group.jobs]
        if error is None:
            return
        if is_lost(error) or isinstance(error, StoreUnavailable):
            _fail(jobs, error)
            raise unavailable(error)  # What comes after it in the batch must not overtake it.
        if is_everybodys(error) or (len(jobs) == 1 and not is_try_again(error)):
            _fail(jobs, error)
            return
        for job in jobs:
            await self._write_one(job)

    async def _write_one(self, job: UnitJob) -> None:
        error = await self._try([Group(job)])
        if error is not None and is_try_again(error):
            error = await self._try([Group(job)])
        if error is not None:
            _fail([job], error)
            if is_lost(error):
                raise unavailable(error)

    async def _try(self, groups: Sequence[Group]) -> BaseException | None:
        """One transaction. What it returns instead of raising is why nothing, as far as is known, was written."""
        try:
            link = await self._lane.take()
        except Exception as error:
            return unavailable(error)
        try:
            if await self._units.run(link, groups):
                self._committed()
            return None
        except Exception as error:
            if is_lost(error):
                link.raw.terminate()
            for group in groups:
                group.forget()  # An outcome that was worked out before the commit failed is none.
            return error
        finally:
            await link.give_up()
            self._lane.give_back(link)


def _fail(jobs: Sequence[UnitJob], error: BaseException) -> None:
    """Those that have their outcome from an earlier part of the batch keep it."""
    for job in jobs:
        if job.result is None and job.error is None:
            job.error = unavailable(error)
