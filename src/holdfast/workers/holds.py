"""The leases of this process: which task runs under each of them, and how they are released.

Every lease ends in exactly one of two ways: this process releases it, or it learns that it lost the lease. A lease
lasts as long as this process renews, so one that is forgotten would keep its session from running anywhere.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.events.ids import Key
from holdfast.live.live import Changed, Live, Lost
from holdfast.store.errors import StoreError
from holdfast.store.store import Lease, ReleaseKind, Store
from holdfast.turns.loop import TurnLoop

log = logging.getLogger(__name__)


class Hold:
    """One lease of this process, until it is released or lost and its task has ended."""

    def __init__(
        self, lease: Lease, release_kind: ReleaseKind = "handed_over", earlier: tuple[asyncio.Task[None], ...] = ()
    ) -> None:
        self.lease = lease
        self.release_kind: ReleaseKind | None = release_kind
        """How to release the lease if its task ends without doing so. None: the lease is released, or lost."""
        self.task: asyncio.Task[None]
        """The task that runs the session. A lease that came too late, or while the process stops, gets none."""
        self.loop: TurnLoop | None = None
        """The loop of the session, while it is loaded."""
        self._earlier = earlier
        self._is_ending = False

    async def wait_for_earlier(self) -> None:
        """Wait for the tasks of earlier leases of the same session, which may still be ending their tools."""
        if self._earlier:
            await asyncio.wait(self._earlier)

    def end(self) -> None:
        """End the task, and at once all activities that it started: the task itself may have to wait for the outcome of
        a write, and another process may hold the session before that outcome arrives.

        The task is cancelled once only: a second cancellation would interrupt it while it ends its tools and releases
        its lease. `task.cancelling()` does not tell whether there was a first one: it also counts a timeout inside the
        task that has just expired, and the task goes on after that."""
        if not self._is_ending:
            self._is_ending = True
            self.task.cancel()
        if self.loop is not None:
            self.loop.end_activities()


class Holds:
    """All leases of this process, and all tasks of its sessions.

    `wakeup` makes the claim loop try again at once: it releases the leases that have no task."""

    def __init__(self, store: Store, live: Live, *, wakeup: asyncio.Event, max_sessions: int) -> None:
        self._store = store
        self._live = live
        self._wakeup = wakeup
        self._max_sessions = max_sessions
        self._running: dict[Lease, Hold] = {}
        """The holds whose task has not ended, in the order of their claims."""
        self._latest: dict[Key, Hold] = {}
        """Of these, the latest of each session."""
        self._owed: dict[Lease, Hold] = {}
        """Unreleased leases without a task. The claim loop tries to release them before every claim."""
        self._early_tails: dict[Key, int | None] = {}
        """Inbox tails of sessions whose inbox changed while they were being claimed and loaded."""
        self.more_may_wait = False
        """Set by the claimer: more sessions may be runnable than there were free places."""
        self.draining = False
        self.lost_leases = 0
        """How often this process lost a session, or could not be sure that it still held it."""

    # Sessions

    @property
    def sessions(self) -> int:
        """How many sessions this process holds, including those that are still loading."""
        return len(self._latest)

    @property
    def free_places(self) -> int:
        return self._max_sessions - len(self._latest)

    def loops(self) -> list[TurnLoop]:
        """The loops of the sessions that are loaded."""
        return [hold.loop for hold in self._latest.values() if hold.loop is not None]

    def tasks(self) -> list[asyncio.Task[None]]:
        return [hold.task for hold in self._running.values()]

    def tasks_of(self, key: Key) -> tuple[asyncio.Task[None], ...]:
        """The tasks of all claims of a session that have not ended. There are several if the session was lost again
        while an earlier task is ending its tools. Fences do not tell which is earlier: a failover may forget one."""
        return tuple(hold.task for hold in self._running.values() if hold.lease.key == key)

    # Wake-ups

    def note_tail(self, key: Key, tail: int | None, *, claim_is_pending: bool) -> bool:
        """Pass a wake-up to the loop of a session, or keep it while the session is being claimed or loaded. False: the
        session is not held here."""
        hold = self._latest.get(key)
        if hold is not None and hold.loop is not None:
            hold.loop.session.note_tail(tail)
        elif hold is not None or claim_is_pending:
            self._early_tails[key] = tail
        else:
            return False
        return True

    def loaded(self, hold: Hold, loop: TurnLoop) -> None:
        hold.loop = loop
        key = hold.lease.key
        if key in self._early_tails:
            loop.session.note_tail(self._early_tails.pop(key))

    def forget_tails_of_others(self) -> bool:
        """Drop the kept wake-ups of sessions that are not held. True: there were some."""
        missed = [key for key in self._early_tails if key not in self._latest]
        for key in missed:
            del self._early_tails[key]
        return bool(missed)

    # Starting and ending tasks

    def start(self, lease: Lease, run: Callable[[Hold], Coroutine[Any, Any, None]]) -> None:
        """Start the task of a lease that the store has just granted. Earlier leases of the session are void."""
        hold = Hold(lease, earlier=self.tasks_of(lease.key))
        for void in self._running.values():
            if void.lease.key == lease.key:
                void.end()
        for void in [left for left in self._owed.values() if left.lease.key == lease.key]:
            self._close(void)
        hold.task = asyncio.create_task(run(hold), name=f"session {lease.key.session}")
        self._running[lease] = self._latest[lease.key] = hold
        hold.task.add_done_callback(functools.partial(self._task_ended, hold))

    def _task_ended(self, hold: Hold, task: asyncio.Task[None]) -> None:
        """Clean up after a session's task, however it ended, also when it was cancelled before its first step."""
        key = hold.lease.key
        del self._running[hold.lease]
        if self._latest.get(key) is hold:
            del self._latest[key]
        if key in self._latest:
            hold.release_kind = None  # A later claim was granted: this lease is void.
        elif hold.release_kind is not None:
            self._owe(hold)
        if key in self._early_tails:
            del self._early_tails[key]
            self._wakeup.set()
        if self.more_may_wait or any(left.lease.key == key for left in self._owed.values()):
            self._wakeup.set()

    def lose(self, lost: Lease | None) -> None:
        """End the task of a lost lease; with None, all tasks. A later claim of the same session is not affected."""
        for hold in self._running.values():
            if hold.release_kind is not None and lost in (None, hold.lease):
                hold.release_kind = "failed"
                hold.end()

    def end_all(self) -> None:
        for hold in self._running.values():
            hold.end()

    # Releasing

    @property
    def owes_releases(self) -> bool:
        """Whether there are leases that no task will release."""
        return bool(self._owed)

    def is_unreleased(self, lease: Lease) -> bool:
        hold = self._running.get(lease) or self._owed.get(lease)
        return hold is not None and hold.release_kind is not None

    def release_soon(self, lease: Lease, kind: ReleaseKind) -> None:
        """Leave a lease that gets no task to the claim loop, which releases it."""
        self._owe(Hold(lease, kind))

    async def release(self, hold: Hold, kind: ReleaseKind) -> None:
        """Release a lease, so that another process or a later try can claim the session at once. If the release fails,
        or is cancelled and may have succeeded, the lease stays unreleased: releasing it again does no harm."""
        try:
            await self._store.release(hold.lease, seen_tail=-1, how=kind)
        except StoreError:
            return
        except Exception:
            log.exception("session %s could not be released", hold.lease.key.session)
            return
        self._close(hold)

    async def retry_releases(self) -> None:
        """Release the leases that no task will release. An earlier task of the same session is waited for: its end
        wakes the claim loop."""
        for hold in list(self._owed.values()):
            key = hold.lease.key
            if hold.release_kind is None or self.tasks_of(key):
                continue
            await self.release(hold, hold.release_kind)
            if hold.lease not in self._owed:
                self._live.publish(key, Lost())  # A late write of that lease may have come after the last look.
            if self.draining:
                self._live.publish(key, Changed())  # Another process may go on with it at once.

    def _owe(self, hold: Hold) -> None:
        self._owed[hold.lease] = hold
        self._wakeup.set()

    def _close(self, hold: Hold) -> None:
        """Note that the lease is released, or void."""
        hold.release_kind = None
        self._owed.pop(hold.lease, None)
