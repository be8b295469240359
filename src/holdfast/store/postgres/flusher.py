"""The one task of this process that commits units. Units that are handed in while the last batch is being committed
become the next batch; each unit has an outcome of its own, which is delivered only after the commit."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import LOCK_SECONDS, STATEMENT_SECONDS, Lane
from holdfast.store.postgres.failures import (
    fails_every_unit,
    held_elsewhere,
    is_locked,
    is_lost,
    is_try_again,
    took_too_long,
    unavailable,
)
from holdfast.store.postgres.units import Group, UnitJob, Units, waves
from holdfast.store.writer_failure import writer_died

log = logging.getLogger(__name__)

BATCH_LIMIT: Final = 1000
"""The most units in one batch: bounds how long the first of them waits for the last."""
BATCH_BYTES: Final = 8 << 20
"""The most bytes in one batch; a single unit may be larger."""


PATIENCE_SECONDS: Final = LOCK_SECONDS
"""How long a unit waits for a session that another process has locked, before it and the session's later units fail."""
FIRST_PAUSE_SECONDS: Final = 0.002
LONGEST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_ALONE_SECONDS: Final = 1.0
"""The backoff between tries of a blocked unit: most locks are held for the time of one commit. A unit that has to be
tried alone keeps the other units waiting while its connection waits for a lock, and is tried more rarely."""
ONE_BY_ONE_SECONDS: Final = 2 * STATEMENT_SECONDS
"""How long the units of a failed batch are tried one by one: if each takes too long, the server is slow, not a unit."""

Session = tuple[str, str]


class Blocked:
    """The units of a session that another transaction has locked, in the order in which they were handed in."""

    __slots__ = ("due", "is_alone", "jobs", "pause", "since")

    def __init__(self) -> None:
        self.jobs: deque[UnitJob] = deque()
        self.since = self.due = time.monotonic()
        self.pause = FIRST_PAUSE_SECONDS
        self.is_alone = False
        """A statement with one of its units waited for a lock other than the session's: its units share no batch with
        those of other sessions."""

    def again_later(self) -> None:
        self.due = time.monotonic() + self.pause
        self.pause = min(self.pause * 2, LONGEST_PAUSE_ALONE_SECONDS if self.is_alone else LONGEST_PAUSE_SECONDS)

    def afresh(self) -> "Blocked":
        """The remaining units, with a fresh backoff, once the first of them were written."""
        left = Blocked()
        left.jobs = self.jobs
        return left

    @property
    def is_given_up(self) -> bool:
        return time.monotonic() - self.since > PATIENCE_SECONDS


class Flusher:
    """The task, its connection and its queue. `committed` is called after every batch that wrote something; `settled`
    with the number and the size of units that were given their outcome; `died`, in place of it, if the task fails: then
    no unit is left waiting.

    No batch waits for a lock. Units whose session is locked elsewhere stand aside, together with all later units of the
    same session, until they are tried again; everything else goes on."""

    def __init__(
        self,
        lane: Lane,
        units: Units,
        committed: Callable[[], None],
        settled: Callable[[int, int], None],
        died: Callable[[StoreUnavailable], None],
    ) -> None:
        self._lane = lane
        self._units = units
        self._committed = committed
        self._settled = settled
        self._died = died
        self._death: StoreUnavailable | None = None
        self._in_hand: list[UnitJob] = []
        """Units that were taken from the queue and have no outcome yet."""
        self._queue: deque[UnitJob] = deque()
        self._blocked: dict[Session, Blocked] = {}
        self._locked: set[Session] = set()
        """Sessions of the current batch that turned out to be locked."""
        self._alone: set[Session] = set()
        """Locked sessions whose units waited for a lock other than the session's."""
        self._wanted = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="holdfast-flusher")

    def submit(self, job: UnitJob) -> None:
        blocked = self._blocked.get(job.key)
        if blocked is not None:
            blocked.jobs.append(job)
        else:
            self._queue.append(job)
            self._wanted.set()
        if self._death is not None:
            self._fail_all(self._death)

    async def stop(self) -> None:
        """End the task once all units that were handed in are committed."""
        self._stopping = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """The task is cancelled only when its event loop ends; that is no failure to report."""
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
        jobs = [*self._in_hand, *self._queue, *(job for each in self._blocked.values() for job in each.jobs)]
        self._in_hand = []
        self._queue.clear()
        self._blocked.clear()
        for job in jobs:
            job.error = death
            job.settle()

    def _settle(self, jobs: Iterable[UnitJob]) -> None:
        """Give units their outcome. They are counted once for all of them, which keeps the single unit cheap."""
        sizes = [job.size for job in jobs if job.settle()]
        self._settled(len(sizes), sum(sizes))

    async def _flush_until_stopped(self) -> None:
        while self._queue or self._blocked or not self._stopping:
            now = time.monotonic()
            due = [key for key, each in self._blocked.items() if each.due <= now]
            if not self._queue and not due:
                await self._wait()
                continue
            alone = {key for key in due if self._blocked[key].is_alone}
            jobs = _taken(self._queue)
            for key in due:
                if key not in alone:
                    jobs += _taken(self._blocked[key].jobs)
            await self._flush_and_settle(jobs)
            for key in alone:
                await self._flush_and_settle(_taken(self._blocked[key].jobs))

    async def _wait(self) -> None:
        """Wait until a unit is handed in, or a unit that stands aside is to be tried again."""
        self._wanted.clear()
        due = min((each.due for each in self._blocked.values()), default=None)
        seconds = None if due is None else max(0.0, due - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()

    async def _flush_and_settle(self, jobs: list[UnitJob]) -> None:
        self._in_hand = jobs
        self._locked.clear()
        self._alone.clear()
        try:
            await self._flush(jobs)
        except Exception as error:
            _fail(jobs, error)
        self._stand_aside([job for job in jobs if job.result is None and job.error is None])
        self._settle([job for job in jobs if job.result is not None or job.error is not None])
        self._in_hand = []

    def _stand_aside(self, unwritten: Sequence[UnitJob]) -> None:
        """Set units aside that were not written, and keep them ahead of all later units of their sessions."""
        if not unwritten and not self._blocked:
            return
        jobs: dict[Session, list[UnitJob]] = {}
        for job in unwritten:
            jobs.setdefault(job.key, []).append(job)
        if any(key not in self._blocked for key in jobs):
            for job in self._queue:
                if job.key in jobs:
                    jobs[job.key].append(job)
            self._queue = deque(job for job in self._queue if job.key not in jobs)
        for key, of_session in jobs.items():
            blocked = self._blocked.setdefault(key, Blocked())
            blocked.jobs.extendleft(reversed(of_session))
            blocked.is_alone |= key in self._alone
            blocked.again_later()
            if blocked.is_given_up:
                self._give_up(blocked)
        for key in {job.key for job in self._in_hand} & self._blocked.keys():
            if not self._blocked[key].jobs:
                del self._blocked[key]
            elif key not in jobs:
                self._blocked[key] = self._blocked[key].afresh()

    def _give_up(self, blocked: Blocked) -> None:
        _fail(blocked.jobs, held_elsewhere())
        self._settle(blocked.jobs)
        blocked.jobs.clear()

    async def _flush(self, jobs: Sequence[UnitJob]) -> None:
        for wave in waves(jobs):
            groups = [group for group in wave if group.key not in self._locked]
            if groups:
                await self._write(groups)

    async def _write(self, groups: Sequence[Group]) -> None:
        """Retry a failed batch unit by unit, unless it may be on disk, or every unit would fail the same way."""
        error = await self._try(groups)
        jobs = [job for group in groups for job in group.jobs]
        if error is None:
            self._locked |= {job.key for job in jobs if job.result is None}
            return
        if is_lost(error) or isinstance(error, StoreUnavailable):
            _fail(jobs, error)
            raise unavailable(error)  # Later units of the batch must not overtake it.
        if fails_every_unit(error) or (len(jobs) == 1 and not is_try_again(error) and not is_locked(error)):
            _fail(jobs, error)
            return
        deadline = time.monotonic() + ONE_BY_ONE_SECONDS
        for job in jobs:
            if took_too_long(error) and time.monotonic() > deadline:
                _fail([job], error)
            elif job.key not in self._locked:
                await self._write_one(job)

    async def _write_one(self, job: UnitJob) -> None:
        error = await self._try([Group(job)])
        if error is not None and is_try_again(error):
            error = await self._try([Group(job)])
        if error is not None and is_locked(error):
            self._locked.add(job.key)
            self._alone.add(job.key)
        elif error is not None:
            _fail([job], error)
            if is_lost(error):
                raise unavailable(error)
        elif job.result is None:
            self._locked.add(job.key)

    async def _try(self, groups: Sequence[Group]) -> BaseException | None:
        """Run one transaction. Returns, instead of raising, the error because of which nothing, as far as is known, was
        written."""
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
                group.forget()  # Outcomes computed before the commit failed are void.
            return error
        finally:
            await link.give_up()
            self._lane.give_back(link)


def _fail(jobs: Sequence[UnitJob], error: BaseException) -> None:
    """Fail the units that have no outcome yet. Those with an outcome from an earlier part of the batch keep it."""
    for job in jobs:
        if job.result is None and job.error is None:
            job.error = unavailable(error)


def _taken(queue: deque[UnitJob]) -> list[UnitJob]:
    """Take the first units of a queue, as many as one batch may have."""
    if len(queue) <= BATCH_LIMIT and sum([job.size for job in queue]) <= BATCH_BYTES:
        whole = list(queue)
        queue.clear()
        return whole
    jobs = [queue.popleft()]
    size = jobs[0].size
    while queue and len(jobs) < BATCH_LIMIT and size + queue[0].size <= BATCH_BYTES:
        jobs.append(queue.popleft())
        size += jobs[-1].size
    return jobs
