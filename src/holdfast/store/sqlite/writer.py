"""The one thread of this process that writes. Jobs that are handed in while the last commit is syncing become the next
transaction; each job has an outcome of its own, which is delivered only after the commit."""

import asyncio
import contextlib
import itertools
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from holdfast.store import crash_points
from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.checkpoints import Checkpoints
from holdfast.store.sqlite.connections import BUSY_SECONDS, is_busy, is_in_doubt, unavailable
from holdfast.store.sqlite.files import DatabaseFiles
from holdfast.store.sqlite.turnstile import Turnstile
from holdfast.store.store import Key
from holdfast.store.writer_failure import writer_died

BATCH_LIMIT: Final = 1000
"""The most jobs in one transaction: bounds how long the first of them waits for the last."""

BATCH_BYTES: Final = 16 << 10
"""How much a transaction adds to the write-ahead log beyond its jobs' own bytes: a few shared pages."""

FOLLOW_SECONDS = 0.002
"""How long a transaction that no other job waits for stays open for the first write of a receiver of an early
result."""

TRY_MILLISECONDS: Final = 1
"""How long SQLite itself waits for the lock of another process. With a longer wait it would retry ever more rarely."""

HEAD_START: Final = 4
"""Turns of the event loop by which receivers of early results are ahead of the other jobs: their next step, a model
call, takes longest."""

MAX_DEFERRALS: Final = 20
"""How many transactions a background job lets pass before it joins one."""

NOT_WRITTEN: Final = None

_IS_BACKGROUND: Final = attrgetter("is_background")
_SIZE: Final = attrgetter("size")

log = logging.getLogger(__name__)


class Job:
    """A write, and the future that waits for it."""

    __slots__ = ("error", "future", "point", "result")

    early: Callable[[Any], None] | None = None
    """Called on the event loop with the result before the commit."""
    needs_sync = True
    is_urgent = False
    """Whether the job must not be delayed for another job."""
    is_background = False
    """Whether the job waits until no other job does: then it delays only jobs that are handed in while it is
    written."""
    size = 8192
    """About how many bytes the job adds to the write-ahead log."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.point: str | None = NOT_WRITTEN
        """The name of the crash point, once the job wrote something."""

    def glance(self, db: sqlite3.Connection) -> bool:
        """Check, before the transaction, whether there is anything to write. True: there is not, and `result` is
        set."""
        return False


class WriterCall(Job):
    """A job that is one function, which returns a result and, if it wrote something, the detail of its crash point."""

    __slots__ = ("_looks", "_runs", "_verb", "changes", "deferrals", "early", "is_background", "needs_sync", "size")

    def __init__(
        self,
        future: asyncio.Future[Any],
        verb: str,
        runs: Callable[[sqlite3.Connection], tuple[Any, str | None]],
        *,
        needs_sync: bool = True,
        looks: Callable[[sqlite3.Connection], tuple[bool, Any]] | None = None,
        changes: Key | None = None,
        early: Callable[[Any], None] | None = None,
        is_background: bool = False,
        size: int = Job.size,
    ) -> None:
        super().__init__(future)
        self.early = early
        self.changes = changes
        self._verb = verb
        self._runs = runs
        self._looks = looks
        self.needs_sync = needs_sync
        self.is_background = is_background
        self.deferrals = 0
        """How often other jobs were written first."""
        self.size = size

    def glance(self, db: sqlite3.Connection) -> bool:
        if self._looks is None:
            return False
        answered, self.result = self._looks(db)
        return answered

    def run(self, db: sqlite3.Connection) -> None:
        self.result, detail = self._runs(db)
        self.point = NOT_WRITTEN if detail is None else f"{self._verb}:{detail}"


RunJobs = Callable[[sqlite3.Connection, Sequence[Job]], None]


class Writer:
    """The thread, its connection and its queue. `run_jobs` runs the jobs inside a transaction; `rolled_back` is called
    when that transaction was rolled back; `settled` is called on the event loop with the number of jobs that have an
    outcome and their total bytes; `died` is called on the event loop if the thread fails, and no job is left
    waiting."""

    def __init__(
        self,
        files: DatabaseFiles,
        turnstile: Turnstile,
        loop: asyncio.AbstractEventLoop,
        checkpoints: Checkpoints,
        run_jobs: RunJobs,
        rolled_back: Callable[[], None],
        settled: Callable[[int, int], None],
        died: Callable[[StoreUnavailable], None],
    ) -> None:
        self._files = files
        self._turnstile = turnstile
        self._loop = loop
        self._checkpoints = checkpoints
        self._run_jobs = run_jobs
        self._rolled_back = rolled_back
        self._settled = settled
        self._died = died
        self._death: StoreUnavailable | None = None
        self._in_hand: list[Job] = []
        """Jobs that were taken from the queue and have no outcome yet."""
        self._told_early: list[Job] = []
        """Jobs of this batch whose result was announced before the commit."""
        self._followers: list[Job] = []
        """Jobs that joined this batch because it was held open for them."""
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._db = self._connect()
        self._synced: bool | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)

    def _connect(self) -> sqlite3.Connection:
        db = self._files.connect()
        db.execute(f"PRAGMA busy_timeout = {TRY_MILLISECONDS}")
        return db

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)
        if self._death is not None:  # Checked after the put: a thread that dies from now on empties the queue itself.
            self._fail_queued(self._death)

    def stop(self) -> None:
        """End the thread once all jobs that were handed in are written."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        except BaseException as error:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        """The thread's outermost edge: this process can't write any more, so every waiting job fails. Closing the
        connection ends an open transaction, and with it the lock that other processes would wait for."""
        log.critical("the writer of %s failed; this process can't write any more", self._files.path, exc_info=error)
        with contextlib.suppress(Exception):
            self._db.close()
        death = writer_died()
        with contextlib.suppress(RuntimeError):  # The loop is closed: no caller waits any more.
            self._loop.call_soon_threadsafe(self._died, death)  # Before any job fails.
        self._death = death
        self._fail_jobs(self._in_hand, death)
        self._fail_queued(death)

    def _fail_queued(self, death: StoreUnavailable) -> None:
        """Safe on any thread: each job is taken from the queue once."""
        found: list[Job | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        self._fail_jobs(found, death)

    def _fail_jobs(self, jobs: Sequence[Job | None], death: StoreUnavailable) -> None:
        """Fail entries of the queue that are jobs. The queue may also hold the very value that the thread failed on."""
        waiting = [job for job in jobs if isinstance(job, Job)]
        _fail(waiting, death)
        self._tell(waiting)

    def _write_until_stopped(self) -> None:
        stopping = False
        while not stopping:
            jobs, stopping = self._take()
            self._in_hand = jobs
            if not stopping and any(map(_IS_BACKGROUND, jobs)):
                jobs = self._in_hand = self._without_background(jobs)
            if not self._is_refused(jobs):
                jobs = self._do(jobs)
            self._tell(jobs)
            self._in_hand = []
            try:
                self._checkpoints.finish(self._db)
            except sqlite3.Error as error:
                log.warning("could not finish a checkpoint: %s", error)
        self._fail_queued(closed())  # Background jobs that were deferred past the end.
        self._db.close()
        self._turnstile.close()

    def _is_refused(self, jobs: Sequence[Job]) -> bool:
        """While the files are lost, no transaction is started, unless the files are back by now."""
        loss = self._files.loss() if self._files.are_lost else None
        if loss is not None:
            _fail(jobs, loss)
        return loss is not None

    def _do(self, jobs: Sequence[Job]) -> list[Job]:
        """Run all jobs of a batch, and those that joined it. Writes committed to files that are no longer the database
        may be gone, so none of them counts as done."""
        # A glance is too early once an earlier job is to be written: that write may change what the glance reads.
        to_write = list(itertools.dropwhile(self._is_answered, jobs))
        done = [*jobs[: len(jobs) - len(to_write)], *to_write]
        if to_write:
            self._write(to_write)
            done += self._followers
        loss = self._files.loss()
        if loss is not None:
            self._rolled_back()
            _fail(done, loss)
        return done

    def _take(self) -> tuple[list[Job], bool]:
        jobs: list[Job] = []
        job = self._queue.get()
        try:
            while job is not None:
                jobs.append(job)
                if len(jobs) == BATCH_LIMIT:
                    return jobs, False
                job = self._queue.get_nowait()
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _without_background(self, jobs: list[Job]) -> list[Job]:
        """The jobs to be written now; the rest are deferred. A background job is written alone, when no other job
        waits, or along with the others once it was deferred many times: there may be no quiet moment."""
        later = [
            job for job in jobs if isinstance(job, WriterCall) and job.is_background and job.deferrals < MAX_DEFERRALS
        ]
        now = [job for job in jobs if job not in later]
        if not now:
            now.append(later.pop(0))
        for job in later:
            job.deferrals += 1
            self._queue.put(job)
        return now

    def _is_answered(self, job: Job) -> bool:
        try:
            return job.glance(self._db)
        except Exception as error:
            if is_busy(error):
                return False  # The transaction, which waits for its turn, can read it.
            job.error = _as_store_error(error)
            return True

    def _write(self, jobs: list[Job]) -> None:
        """Write all jobs, and those that are handed in after them and join the transaction."""
        error = self._try(jobs, may_wait=True)
        if error is None:
            return
        if len(jobs) == 1 or isinstance(error, CommitInDoubt | NotBegun):
            _fail(jobs, error)
            return
        for job in jobs:
            # A second try of an announced job might have another result.
            alone = error if job in self._told_early else self._try([job])
            if alone is not None:
                _fail([job], alone)

    def _try(self, jobs: list[Job], *, may_wait: bool = False) -> Exception | None:
        """Run one transaction. Returns, instead of raising, the error because of which nothing, as far as is known, was
        written."""
        try:
            self._begin(jobs)
            self._run_jobs(self._db, jobs)
            if may_wait:
                self._told_early = [job for job in jobs if job.early is not None and self._tell_early(job)]
                if self._told_early and self._may_wait(jobs):
                    self._followers = self._take_followers()
                    jobs += self._followers
                    self._run_jobs(self._db, self._followers)
            self._commit(jobs)
        except Exception as error:
            self._roll_back()
            return error
        return None

    def _tell_early(self, job: Job) -> bool:
        """Announce a result that is still to be committed. False: there is no result, or no caller waits."""
        if job.early is None or not job.result:
            return False
        try:
            self._loop.call_soon_threadsafe(job.early, job.result)
        except RuntimeError:
            return False  # The loop is closed.
        return True

    def _may_wait(self, jobs: Sequence[Job]) -> bool:
        """Whether to wait for followers: the receiver of an early result is about to hand in a job, and one sync would
        serve both."""
        return self._synced is True and not any(job.is_urgent for job in jobs)

    def _take_followers(self) -> list[Job]:
        """The jobs that are handed in up to the first urgent one, which is most likely the job that is waited for."""
        found: list[Job] = []
        until = time.monotonic() + FOLLOW_SECONDS
        try:
            while (left := until - time.monotonic()) > 0 and not (found and found[-1].is_urgent):
                job = self._queue.get(timeout=left)
                if job is None or job.is_background:
                    self._queue.put(job)  # To be taken again after this transaction.
                    break
                found.append(job)
        except queue.Empty:
            pass
        self._in_hand = [*self._in_hand, *found]
        return found

    def _begin(self, jobs: Sequence[Job]) -> None:
        synced = any(job.needs_sync for job in jobs)
        try:
            if synced is not self._synced:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            with self._turnstile:
                self._begin_in_turn()
        except sqlite3.Error as error:
            raise NotBegun(error) from error

    def _begin_in_turn(self) -> None:
        """Retry SQLite's lock often: the process that has it may not take it again before this process had it."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= until:
                    raise
            else:
                return

    def _commit(self, jobs: Sequence[Job]) -> None:
        watched = crash_points.watched()
        if watched:
            _reach(jobs, "before")
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if is_in_doubt(error):
                raise CommitInDoubt(error) from error
            raise
        if watched:
            try:
                _reach(jobs, "after")
            except Exception as error:
                raise CommitInDoubt(error) from error
        self._checkpoints.committed(BATCH_BYTES + sum(map(_SIZE, jobs)))

    def _roll_back(self) -> None:
        """Leave no transaction open, even if that takes a new connection. If both fail, the thread can't go on."""
        self._rolled_back()
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            self._db.close()
            self._synced = None
            self._db = self._connect()

    def _tell(self, jobs: Sequence[Job]) -> None:
        first = [*self._told_early, *self._followers]
        self._told_early, self._followers = [], []
        others = [job for job in jobs if job not in first] if first else jobs
        try:
            self._loop.call_soon_threadsafe(self._settle, first, others, HEAD_START if first else 0)
        except RuntimeError:
            pass  # The loop is closed: no caller waits any more.

    def _settle(self, first: Sequence[Job], others: Sequence[Job], turns: int) -> None:
        """Runs on the event loop. Receivers of early results, and their followers, go first."""
        self._settle_all(first)
        if turns:
            self._loop.call_soon(self._settle, (), others, turns - 1)
        else:
            self._settle_all(others)

    def _settle_all(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        self._settled(len(jobs), sum(map(_SIZE, jobs)))


class BatchFailed(Exception):
    """The transaction failed, and retrying its jobs one by one would not help."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NotBegun(BatchFailed):
    """The transaction could not start: another process holds the database's lock."""


class CommitInDoubt(BatchFailed):
    """The commit failed, but may be on disk all the same."""


def _reach(jobs: Sequence[Job], moment: str) -> None:
    for job in jobs:
        if job.point is not None:
            crash_points.reach(f"{job.point}:{moment}")


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    for job in jobs:
        job.error = _as_store_error(error.cause if isinstance(error, BatchFailed) else error)


def _as_store_error(error: BaseException) -> BaseException:
    return unavailable(error) if isinstance(error, sqlite3.Error) else error


def closed() -> StoreUnavailable:
    return StoreUnavailable("store_closed", "The store is closed. Open it again.")
