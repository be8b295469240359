"""Claims runnable sessions, and runs each in a task of its own until it is released.

Every claim ends in exactly one of two ways: this process releases it, or it learns that it lost the lease.
"""

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.events.ids import Key, random_id
from holdfast.live.live import Changed, Live, Lost
from holdfast.models.credentials import Credentials
from holdfast.observability.observer import Observer
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION
from holdfast.session.state import Phase
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Claim, Lease, ReleaseKind, Store
from holdfast.tasks.shell import Shell
from holdfast.tools.registry import Registry
from holdfast.tools.working_directory import Identify, identity_of
from holdfast.turns.cancelled_tools import GIVE_UP_SECONDS
from holdfast.turns.errors import LeaseLost, ModelUnusableHere
from holdfast.turns.held_session import HeldSession, MayWorkIn, nowhere
from holdfast.turns.load import load_claimed
from holdfast.turns.loop import Models, TurnLoop
from holdfast.turns.titles import Titles
from holdfast.workers.lease_keeper import LeaseKeeper

log = logging.getLogger(__name__)

MAX_DOUBLINGS = 6
"""Bound of the backoff for a session that fails before anything can be decided: about one try a minute."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker renews, claims and polls, how long its leases last, and how many sessions it holds."""

    lease_ttl_seconds: float = 15.0
    renew_every_seconds: float = 4.0
    lease_margin_seconds: float = 3.0
    claim_every_seconds: float = 1.0
    listen_every_seconds: float = 0.5
    max_sessions: int = 200


class PendingClaim:
    """A claim that the store is carrying out, and the sessions that were started before the store confirmed it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.started: set[Lease] = set()
        self.claims: asyncio.Future[list[Claim]]


class Worker:
    """Runs sessions; one per process. Stopping it hands over or drops its sessions; nothing acknowledged is lost."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        pace: Pace,
        node: str,
        registry: Registry,
        models: Models,
        credentials: Credentials | None = None,
        shell: Shell | None = None,
        instructions: str = "",
        observer: Observer | None = None,
        new_id: Callable[[], str] = random_id,
        may_work_in: MayWorkIn = nowhere,
        identify: Identify = identity_of,
    ) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        self._bounds = bounds
        self._pace = pace
        self._node = node
        self._registry = registry
        self._models = models
        self._credentials = credentials
        self._shell = shell
        self._instructions = instructions
        self._observer = observer or Observer(clock)
        self._new_id = new_id
        self._may_work_in = may_work_in
        self._identify = identify
        self._titles = Titles(store=store, live=live, clock=clock, new_id=new_id)
        self._running: dict[Key, asyncio.Task[None]] = {}
        """The task of the latest claim of each session."""
        self._loops: dict[Key, TurnLoop] = {}
        """The loops of the sessions that are loaded."""
        self._lingering: set[HeldSession] = set()
        """Sessions that only wait for a person or a client, and are about to be released."""
        self._lease_tasks: dict[Lease, asyncio.Task[None]] = {}
        """The tasks in `_running`, and the tasks of earlier claims of the same sessions that have not ended yet."""
        self._unreleased: dict[Lease, ReleaseKind] = {}
        """Every lease that is neither released nor known to be lost, and how to release it if its task ends without
        doing so. A lease lasts as long as this process renews, so each one here either has a task or is in
        `_to_release`."""
        self._to_release: set[Lease] = set()
        """Leases in `_unreleased` that have no task. The worker tries to release them before every claim."""
        self._cancelled_tasks: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        """Tasks that were cancelled once; see `_cancel_once`."""
        self._orphans: set[asyncio.Task[Any]] = set()
        """Tools that were cancelled and still run though their session was released."""
        self._unknown_claims_until: float | None = None
        """Until this time, a claim whose outcome is unknown may turn out to have succeeded; None: no such claim."""
        self._claim_wakeup = asyncio.Event()
        """Makes the claim loop try again at once."""
        self._pending_claim: PendingClaim | None = None
        self._early_tails: dict[Key, int | None] = {}
        """Inbox tails of sessions whose inbox changed while they were being claimed and loaded."""
        self._more_may_wait = False
        """The last claim filled all free places, so more sessions may be runnable."""
        self._unusable_models: set[str] = set()
        """Models that this process could not use: it leaves their sessions to other processes."""
        self._draining = False
        self._stopping: asyncio.Future[None] | None = None
        self._grace_is_over = asyncio.Event()
        self.lost_leases = 0
        """How often this process lost a session, or could not be sure that it still held it."""
        self._duties: list[asyncio.Task[None]] = []
        """The worker's long-lived tasks: the claim loop first, then the lease keeper and the watch on other processes.
        Empty before the start."""
        self.keeper = LeaseKeeper(
            store,
            clock,
            ttl_seconds=pace.lease_ttl_seconds,
            renew_every_seconds=pace.renew_every_seconds,
            margin_seconds=pace.lease_margin_seconds,
            listen_every_seconds=pace.listen_every_seconds,
            on_lost=self._lease_lost,
        )

    async def __aenter__(self) -> Self:
        await self.keeper.renew()
        self._stop_listening = self._live.on_change(self._on_change)
        for duty in (self._run_claims(), self.keeper.run(), self._watch_other_processes()):
            self._duties.append(asyncio.create_task(duty))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(grace_seconds=0)

    async def stop(self, *, grace_seconds: float) -> None:
        """Stop claiming; let each session finish its step within `grace_seconds`; then release all sessions.

        Returns when all of that is done, however often it is called. The shortest grace of all calls counts, and a
        caller that is cancelled ends the grace."""
        if not self._duties:
            return  # Never started.
        if self._stopping is None:
            self._draining = True
            self._stop_listening()
            self._duties[0].cancel()  # Once: the claim loop still hands over what a pending claim returns.
            self._stopping = asyncio.ensure_future(self._stop())
        try:
            if grace_seconds > 0:
                await asyncio.wait((self._stopping,), timeout=grace_seconds)
        finally:
            self._grace_is_over.set()
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._titles.stop()
        for loop in self._loops.values():
            loop.draining = True
            loop.session.wake()
        await self._drain()
        ending = list(self._lease_tasks.values())
        for lease, task in self._lease_tasks.items():
            self._end_session(lease.key, task)
        for duty in self._duties[1:]:
            self._cancel_once(duty)
        await asyncio.gather(*ending, *self._duties, return_exceptions=True)
        await self._retry_releases()
        if self._orphans:
            await asyncio.wait(tuple(self._orphans), timeout=GIVE_UP_SECONDS)

    async def _drain(self) -> None:
        """Wait until every session has finished its step, or the grace is over."""
        if not self._lease_tasks or self._grace_is_over.is_set():
            return
        stepping = asyncio.ensure_future(asyncio.wait(self._lease_tasks.values()))
        over = asyncio.ensure_future(self._grace_is_over.wait())
        await asyncio.wait((stepping, over), return_when=asyncio.FIRST_COMPLETED)
        for waiter in (stepping, over):
            waiter.cancel()
        await asyncio.gather(stepping, over, return_exceptions=True)

    @property
    def sessions_held(self) -> int:
        """How many sessions this process holds, including those that are still loading."""
        return len(self._running)

    @property
    def turns_running(self) -> int:
        """How many of them are in a turn that runs, and does not wait for a person or a client."""
        return sum(loop.session.state.phase not in (Phase.IDLE, Phase.WAITING) for loop in self._loops.values())

    # Claiming

    def _on_change(self, key: Key | None, tail: int | None) -> None:
        """Take a wake-up: pass it to the session if it is held, keep it if the session is loading, or else claim."""
        for session in sorted(self._lingering, key=lambda lingering: lingering.key):
            if key is None or key.owner == session.key.owner:
                session.others_changed.set()
        if key is not None and key in self._loops:
            self._loops[key].session.note_tail(tail)
        elif key is not None and (self._pending_claim is not None or key in self._running):
            self._early_tails[key] = tail
        else:
            self._claim_wakeup.set()
            if (
                self._pending_claim is None
                and self._may_claim()
                and not self._to_release
                and self._unknown_claims_until is None
            ):
                self._request_claim()  # At once: the claim then joins the transaction of the put.

    async def _run_claims(self) -> None:
        """Claim until cancelled; then hand over what the last claim still returns."""
        try:
            await self._claim_loop()
        finally:
            await self._hand_over_pending_claim()

    async def _claim_loop(self) -> None:
        """Release what is left to release, and claim: on each wake-up, and at least every `claim_every_seconds`."""
        while True:
            self._claim_wakeup.clear()
            try:
                await self._retry_releases()
                await self._release_unknown_claims()
                await self._claim()
            except StoreError as error:
                self._unknown_claims_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
                log.warning("could not claim: %s", error.message)
            except Exception:
                self._unknown_claims_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
                log.exception("could not claim")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.claim_every_seconds):
                    await self._claim_wakeup.wait()

    def _may_claim(self) -> bool:
        return len(self._running) < self._pace.max_sessions and self.keeper.trusted() and not self._draining

    async def _others_wait(self, key: Key) -> bool:
        """Whether other sessions wait for a free place in this process, or for a slot of the same owner."""
        is_full = len(self._running) >= self._pace.max_sessions
        if is_full and await self._store.has_next(without_models=self._unusable_models):
            return True
        limit = self._store.limits.running_of(key.owner)
        turns = None if limit is None else await self._store.turns(key.owner)
        return limit is not None and turns is not None and turns.queued > 0 and turns.slots >= limit

    def _request_claim(self) -> PendingClaim:
        """Send a claim for as many sessions as this process has room for, without waiting for the result."""
        pending = self._pending_claim = PendingClaim(self._pace.max_sessions - len(self._running))
        pending.claims = asyncio.ensure_future(
            self._store.claim(
                limit=pending.limit,
                without_models=self._unusable_models,
                fold_version=FOLD_VERSION,
                early=functools.partial(self._start_early, pending),
            )
        )
        return pending

    async def _claim(self) -> None:
        """Wait for the pending claim, or make one, and start the sessions that it returns."""
        self._more_may_wait = len(self._running) >= self._pace.max_sessions
        if self._pending_claim is None and not self._may_claim():
            return
        pending = self._pending_claim or self._request_claim()
        try:
            claims = await asyncio.shield(pending.claims)
        except Exception:
            for lease in pending.started:
                self._lease_lost(lease)
            self._pending_claim = None
            raise
        self._pending_claim = None
        self._more_may_wait = len(claims) == pending.limit
        for claim in claims:
            if claim.lease not in pending.started:
                self._start_session(claim)
        missed = [key for key in self._early_tails if key not in self._running]
        for key in missed:
            del self._early_tails[key]
        if missed or (self._more_may_wait and len(self._running) < self._pace.max_sessions):
            self._claim_wakeup.set()  # Sessions became runnable, or ended here, while the claim was pending.

    def _start_early(self, pending: PendingClaim, claims: list[Claim]) -> None:
        """Start sessions before their claim is committed. Their first unit is queued after the claim, so deciding on
        it need not wait for the commit."""
        for claim in claims:
            if claim.loaded is not None and self._pending_claim is pending and not self._draining:
                pending.started.add(claim.lease)
                self._start_session(claim, pending.claims)

    def _start_session(self, claim: Claim, claims: asyncio.Future[list[Claim]] | None = None) -> None:
        """Start the task of a claimed session. `claims` is the pending claim, if it is not yet committed."""
        lease = claim.lease
        if not self.keeper.trusted():
            self._release_soon(
                lease, "failed"
            )  # The result of the claim came too late: another process may hold the session by now.
            return
        before = self._tasks_of(lease.key)
        # The store granted a new claim, so the earlier ones are void.
        for task in before:
            self._end_session(lease.key, task)
        for void in [waiting for waiting in self._to_release if waiting.key == lease.key]:
            self._to_release.remove(void)
            del self._unreleased[void]
        self._unreleased[lease] = "handed_over"
        task = asyncio.create_task(self._hold(claim, claims, before), name=f"session {lease.key.session}")
        self._running[lease.key] = task
        self._lease_tasks[lease] = task
        task.add_done_callback(functools.partial(self._task_ended, lease))

    def _tasks_of(self, key: Key) -> tuple[asyncio.Task[None], ...]:
        """The tasks of all claims of a session that have not ended. There are several if the session was lost again
        while an earlier task is ending its tools. Fences do not tell which is earlier: a failover may forget one."""
        return tuple(task for lease, task in self._lease_tasks.items() if lease.key == key)

    def _release_soon(self, lease: Lease, how: ReleaseKind) -> None:
        """Leave a lease without a task to the claim loop, which releases it."""
        self._unreleased[lease] = how
        self._to_release.add(lease)
        self._claim_wakeup.set()

    async def _hand_over_pending_claim(self) -> None:
        """On stop: leave the sessions that the pending claim returns, and that were not started, to other processes."""
        pending, self._pending_claim = self._pending_claim, None
        if pending is not None:
            for claim in await pending.claims:
                if claim.lease not in pending.started:
                    self._release_soon(claim.lease, "handed_over")

    def _task_ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        """Clean up after a session's task, however it ended, also when it was cancelled before its first step."""
        key = lease.key
        del self._lease_tasks[lease]
        if self._running.get(key) is task:
            del self._running[key]
        if key in self._running:
            self._unreleased.pop(lease, None)  # A later claim was granted: this lease is void.
        elif lease in self._unreleased:
            self._release_soon(lease, self._unreleased[lease])
        if key in self._early_tails:
            del self._early_tails[key]
            self._claim_wakeup.set()
        if self._more_may_wait or any(waiting.key == key for waiting in self._to_release):
            self._claim_wakeup.set()

    async def _watch_other_processes(self) -> None:
        """Notice what other processes commit to the same store, while this process holds or reads a session."""
        async for _ in self._store.changes(wanted=self._has_listeners):
            if self._live.others_wrote() and self._loops:
                await self.keeper.listen()

    def _has_listeners(self) -> bool:
        return bool(self._loops) or self._live.listening()

    # Holding

    async def _hold(
        self, claim: Claim, claims: asyncio.Future[list[Claim]] | None, before: tuple[asyncio.Task[None], ...]
    ) -> None:
        """Load, run and release one claimed session. An error ends the run of this session only.

        `before` are the earlier tasks of the same session. They are waited for even if this claim is lost meanwhile: a
        release lets another process start what they are still ending."""
        key = claim.lease.key
        ended_by_itself = False
        try:
            if before:
                await asyncio.wait(before)
            await self._run(claim, claims)
        except ModelUnusableHere as error:
            log.warning("session %s is left to a process that can use its model: %s", key.session, error)
            pause = self._pace.claim_every_seconds if error.model in self._unusable_models else 0
            if error.model is not None:
                self._unusable_models.add(error.model)
            await self._release_after(pause, claim, "handed_over")
        except LeaseLost:
            del self._unreleased[claim.lease]
            self.lost_leases += 1
            log.info("lost session %s", key.session)
        except asyncio.CancelledError:
            if before:
                await asyncio.wait(before)
            self.lost_leases += self._unreleased[claim.lease] == "failed"
            await self._release(claim.lease, self._unreleased[claim.lease])
            raise
        except StoreError as error:
            log.error("session %s was dropped, it will be claimed again: %s", key.session, error.message)
            await self._release_after_backoff(claim)
        except Exception:
            log.exception("session %s was dropped, it will be claimed again", key.session)
            await self._release_after_backoff(claim)
        else:
            ended_by_itself = True
            del self._unreleased[claim.lease]
            await self._offer_freed_slot(key)
        finally:
            if self._draining:
                self._live.publish(key, Changed())  # Another process may go on with it at once.
            if not ended_by_itself:
                self._cut_off(key)

    def _cut_off(self, key: Key) -> None:
        """A run of a session did not end by itself; its release may have been cancelled, too. Its last write may be on
        disk though its outcome never arrived here: readers look for it in the store, and the claim loop for what is
        left to do."""
        self._live.publish(key, Lost())
        self._claim_wakeup.set()

    async def _offer_freed_slot(self, key: Key) -> None:
        """Wake all workers if the owner has a queued turn: it may take the slot that was just freed, in any process."""
        if self._store.limits.running_of(key.owner) is None:
            return
        self._claim_wakeup.set()
        with contextlib.suppress(StoreError):
            if (await self._store.turns(key.owner)).queued:
                self._live.publish(key, Changed())

    async def _run(self, claim: Claim, claims: asyncio.Future[list[Claim]] | None) -> None:
        """Load the session and run its loop until it is released."""
        key = claim.lease.key
        await self._let_others_ahead(claim)
        max_claims = self._bounds.max_claims_without_progress
        folded = await load_claimed(self._store, claim, max_claims=max_claims, claiming=claims)
        if folded is None:
            raise LeaseLost(key)
        session = HeldSession(
            store=self._store,
            live=self._live,
            clock=self._clock,
            bounds=self._bounds,
            new_id=self._new_id,
            lease=claim.lease,
            folded=folded,
            claiming=claims,
            shell=self._shell,
            observer=self._observer,
            orphans=self._orphans,
            may_work_in=self._may_work_in,
            identify=self._identify,
            lease_seconds_left=self.keeper.seconds_left,
        )
        loop = TurnLoop(
            session,
            claim,
            node=self._node,
            models=self._models,
            credentials=self._credentials,
            registry=self._registry,
            instructions=self._instructions,
            titles=self._titles,
            lingering=self._lingering,
            others_wait=self._others_wait,
        )
        loop.draining = self._draining
        self._loops[key] = loop
        self.keeper.sessions[key] = session
        if key in self._early_tails:
            session.note_tail(self._early_tails.pop(key))
        state = session.state
        resumed = session.observed.resume(
            state.turn.turn_id if state.turn else None, waits=state.phase is Phase.WAITING
        )
        try:
            with resumed:
                await loop.run()
        finally:
            if self._loops.get(key) is loop:  # Another loop, if the session was lost and claimed again meanwhile.
                del self._loops[key]
            if self.keeper.sessions.get(key) is session:
                del self.keeper.sessions[key]
            if session.woken.is_set():
                # An item was put during the release: its wake-up went to this loop, which no longer reacts to it.
                self._claim_wakeup.set()

    async def _let_others_ahead(self, claim: Claim) -> None:
        """Delay a large session whose last holders made no progress: loading it may kill this process. Otherwise the
        sessions that were claimed with it would never get ahead of it; the same claims would be counted against them,
        and they would be given up with it."""
        before = claim.claims_without_progress - 1
        if claim.loaded is None and before > 0:
            await self._clock.sleep(self._pace.claim_every_seconds * 2 ** min(before - 1, MAX_DOUBLINGS))

    async def _release_after_backoff(self, claim: Claim) -> None:
        """Release after a backoff, so that a full disk or a bug is not hit again a thousand times a second."""
        beyond = claim.claims_without_progress - self._bounds.max_claims_without_progress - 1
        doublings = max(0, min(beyond, MAX_DOUBLINGS))
        await self._release_after(self._pace.claim_every_seconds * 2**doublings, claim, "failed")

    async def _release_after(self, seconds: float, claim: Claim, how: ReleaseKind) -> None:
        """Release after a pause, or at once if cancelled: a lease that is kept lasts as long as this process lives."""
        self._unreleased[claim.lease] = how
        try:
            await self._clock.sleep(seconds)
        finally:
            await self._release(claim.lease, how)

    async def _release(self, lease: Lease, how: ReleaseKind) -> None:
        """Release a lease, so that another process or a later try can claim the session at once. A lease whose release
        failed, or was cancelled and may have succeeded, stays in `_unreleased`: releasing it again does no harm."""
        try:
            await self._store.release(lease, seen_tail=-1, how=how)
        except StoreError:
            return
        except Exception:
            log.exception("session %s could not be given back", lease.key.session)
            return
        self._unreleased.pop(lease, None)
        self._to_release.discard(lease)

    async def _retry_releases(self) -> None:
        """Release the leases that no task will release. An earlier task of the same session is waited for: its end
        wakes the claim loop."""
        for lease in list(self._to_release):
            if self._tasks_of(lease.key) or lease not in self._to_release:
                continue
            await self._release(lease, self._unreleased[lease])
            if lease not in self._unreleased:
                self._live.publish(lease.key, Lost())  # A late write of that lease may have come after the last look.
            if self._draining:
                self._live.publish(lease.key, Changed())  # Another process may go on with it at once.

    async def _release_unknown_claims(self) -> None:
        """Release sessions that the store says this process holds, and that it does not run. A claim whose outcome is
        unknown may have succeeded, now or a moment later, and no other process could run those sessions for as long
        as this one lives."""
        if self._unknown_claims_until is None:
            return
        is_last_look = self._clock.monotonic() >= self._unknown_claims_until
        for lease in await self._store.held():
            if lease in self._unreleased:
                continue
            if self._tasks_of(lease.key):
                is_last_look = False  # An earlier claim of it is still ending its tools here: look again after that.
            else:
                await self._store.release(lease, seen_tail=-1, how="handed_over")
        if is_last_look:
            self._unknown_claims_until = None

    def _lease_lost(self, lost: Lease | None) -> None:
        """End the task of a lost lease; with None, all tasks. A later claim of the same session is not affected."""
        for lease, task in self._lease_tasks.items():
            if (lost is None or lease == lost) and lease in self._unreleased:
                self._unreleased[lease] = "failed"
                self._end_session(lease.key, task)

    def _end_session(self, key: Key, task: asyncio.Task[None]) -> None:
        """End a session's task, and at once all activities that it started: the task itself may have to wait for the
        outcome of a write, and another process may hold the session before that outcome arrives."""
        self._cancel_once(task)
        loop = self._loops.get(key)
        if loop is not None and self._lease_tasks.get(loop.session.lease) is task:
            loop.end_activities()

    def _cancel_once(self, task: asyncio.Task[None]) -> None:
        """Cancel a task, unless it was cancelled before: a second cancellation would interrupt the session while it
        ends its tools and releases its lease.

        `task.cancelling()` does not tell whether there was a first one: it also counts a timeout inside the task that
        has just expired, and the task goes on after that."""
        if task not in self._cancelled_tasks:
            self._cancelled_tasks.add(task)
            task.cancel()
