"""Claims sessions that have something to do, and runs each in a task of its own until it is released."""

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
from holdfast.turns.load import folded
from holdfast.turns.loop import Models, TurnLoop
from holdfast.turns.titles import Titles
from holdfast.workers.lease_keeper import LeaseKeeper

log = logging.getLogger(__name__)

MAX_DOUBLINGS = 6
"""A session that fails before anything can be decided is tried ever more rarely, down to about once a minute."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker does what it does by itself."""

    lease_ttl_seconds: float = 15.0
    renew_every_seconds: float = 4.0
    lease_margin_seconds: float = 3.0
    claim_every_seconds: float = 1.0
    listen_every_seconds: float = 0.5
    max_sessions: int = 200


class Asking:
    """A claim that was handed in, and the sessions that were begun before it was told to have taken place."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.begun: set[Key] = set()
        self.claims: asyncio.Future[list[Claim]]


class Worker:
    """One per process. Stopping it hands over or drops what it runs; nothing that was acknowledged is lost."""

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
        self._loops: dict[Key, TurnLoop] = {}
        self._lingering: set[HeldSession] = set()
        """Those that only wait for somebody, and are about to be let go of."""
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        """The tasks in `_running`, and those of earlier claims of the same sessions that have not ended yet."""
        self._held: dict[Lease, ReleaseKind] = {}
        """Every claim that is neither released nor known to be lost, and how it is given back if its task ends without
        doing so. A lease lasts as long as this process renews, so each one here is run by a task or is in `_owed`."""
        self._owed: set[Lease] = set()
        """Claims in `_held` that no task runs. Their release is tried before every look for more."""
        self._cancelled: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        """Tasks that were told to end."""
        self._orphans: set[asyncio.Task[Any]] = set()
        """Tools that were cancelled and still run though their session was let go of."""
        self._is_unsure_until: float | None = None
        """Until then a claim may come to light whose outcome was never heard; None: there is none."""
        self._wanted = asyncio.Event()
        self._asking: Asking | None = None
        self._heard_early: dict[Key, int | None] = {}
        """Sessions that something was put into while they were being claimed and loaded, and their tails."""
        self._left_some = False
        """The last claim took all that there was room for; perhaps there is more."""
        self._unusable_models: set[str] = set()
        """Models that this process turned out to have no way to use: their sessions are left to others."""
        self._draining = False
        self._stopping: asyncio.Future[None] | None = None
        self._grace_is_over = asyncio.Event()
        self.lost_leases = 0
        """How often a session was taken from this process, or it could not be sure that it was not."""
        self._duties: list[asyncio.Task[None]] = []
        self.keeper = LeaseKeeper(
            store,
            clock,
            ttl_seconds=pace.lease_ttl_seconds,
            renew_every_seconds=pace.renew_every_seconds,
            margin_seconds=pace.lease_margin_seconds,
            listen_every_seconds=pace.listen_every_seconds,
            on_lost=self._lost,
        )

    async def __aenter__(self) -> Self:
        await self.keeper.renew()
        self._stop_hearing = self._live.on_change(self._heard)
        for duty in (self._claiming(), self.keeper.run(), self._hearing_others()):
            self._duties.append(asyncio.create_task(duty))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(grace_seconds=0)

    async def stop(self, *, grace_seconds: float) -> None:
        """Stop claiming; let each session come to the end of its step, but no longer than this; then let go of all.

        Returns when all of that is done, however often it is called. The shortest grace counts, and a caller that is
        cancelled leaves none."""
        if not self._duties:
            return  # Never begun.
        if self._stopping is None:
            self._draining = True
            self._stop_hearing()
            self._duties[0].cancel()  # Once: it still gives back what the store is handing out.
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
        await self._grace()
        ending = list(self._tasks.values())
        for lease, task in self._tasks.items():
            self._end(lease.key, task)
        for duty in self._duties[1:]:
            self._cancel_once(duty)
        await asyncio.gather(*ending, *self._duties, return_exceptions=True)
        await self._give_back_owed()
        if self._orphans:
            await asyncio.wait(tuple(self._orphans), timeout=GIVE_UP_SECONDS)

    async def _grace(self) -> None:
        """Until every session has come to the end of its step, or there is no more time."""
        if not self._tasks or self._grace_is_over.is_set():
            return
        stepping = asyncio.ensure_future(asyncio.wait(self._tasks.values()))
        over = asyncio.ensure_future(self._grace_is_over.wait())
        await asyncio.wait((stepping, over), return_when=asyncio.FIRST_COMPLETED)
        for waiting in (stepping, over):
            waiting.cancel()
        await asyncio.gather(stepping, over, return_exceptions=True)

    @property
    def sessions_held(self) -> int:
        """How many sessions are in memory."""
        return len(self._running)

    @property
    def turns_running(self) -> int:
        """How many of them are in a turn that does not wait for somebody."""
        return sum(loop.session.state.phase not in (Phase.IDLE, Phase.WAITING) for loop in self._loops.values())

    # Claiming

    def _heard(self, key: Key | None, tail: int | None) -> None:
        for session in sorted(self._lingering, key=lambda held: held.key):
            if key is None or key.owner == session.key.owner:
                session.others_changed.set()
        if key is not None and key in self._loops:
            self._loops[key].session.heard_tail(tail)
        elif key is not None and (self._asking is not None or key in self._running):
            self._heard_early[key] = tail
        else:
            self._wanted.set()
            if self._asking is None and self._may_claim() and not self._owed and self._is_unsure_until is None:
                self._ask()  # At once: then it is right behind what is just being put, and in the same transaction.

    async def _claiming(self) -> None:
        try:
            await self._claim_for_ever()
        finally:
            await self._give_back_asked()

    async def _claim_for_ever(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self._give_back_owed()
                await self._give_back_unheard()
                await self._claim()
            except StoreError as error:
                self._is_unsure_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
                log.warning("could not claim: %s", error.message)
            except Exception:
                self._is_unsure_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
                log.exception("could not claim")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.claim_every_seconds):
                    await self._wanted.wait()

    def _may_claim(self) -> bool:
        return len(self._running) < self._pace.max_sessions and self.keeper.trusted() and not self._draining

    async def _others_wait(self, key: Key) -> bool:
        """Whether other sessions wait for a place in this process, or for a slot of the same owner."""
        is_full = len(self._running) >= self._pace.max_sessions
        if is_full and await self._store.has_next(without_models=self._unusable_models):
            return True
        limit = self._store.limits.running_of(key.owner)
        turns = None if limit is None else await self._store.turns(key.owner)
        return limit is not None and turns is not None and turns.queued > 0 and turns.slots >= limit

    def _ask(self) -> Asking:
        asking = self._asking = Asking(self._pace.max_sessions - len(self._running))
        asking.claims = asyncio.ensure_future(
            self._store.claim(
                limit=asking.free,
                without_models=self._unusable_models,
                fold_version=FOLD_VERSION,
                early=functools.partial(self._begin_early, asking),
            )
        )
        return asking

    async def _claim(self) -> None:
        self._left_some = len(self._running) >= self._pace.max_sessions
        if self._asking is None and not self._may_claim():
            return
        asking = self._asking or self._ask()
        try:
            claims = await asyncio.shield(asking.claims)
        except Exception:
            for key in asking.begun:
                self._lost(key)
            self._asking = None
            raise
        self._asking = None
        self._left_some = len(claims) == asking.free
        for claim in claims:
            if claim.lease.key not in asking.begun:
                self._begin(claim)
        missed = [key for key in self._heard_early if key not in self._running]
        for key in missed:
            del self._heard_early[key]
        if missed or (self._left_some and len(self._running) < self._pace.max_sessions):
            self._wanted.set()  # Some were put, or ended, while the store was asked.

    def _begin_early(self, asking: Asking, claims: list[Claim]) -> None:
        """What is decided first, and handed in, is behind the claim: it need not wait for it."""
        for claim in claims:
            if claim.loaded is not None and self._asking is asking and not self._draining:
                asking.begun.add(claim.lease.key)
                self._begin(claim, asking.claims)

    def _begin(self, claim: Claim, claims: asyncio.Future[list[Claim]] | None = None) -> None:
        lease = claim.lease
        if not self.keeper.trusted():
            self._owe(lease, "failed")  # The answer came too late: another process may hold the session by now.
            return
        self._held[lease] = "handed_over"
        before = self._running.get(lease.key)
        if before is not None:
            self._end(lease.key, before)  # The store gave the session out anew, so the earlier claim is void.
        task = asyncio.create_task(self._hold(claim, claims, before), name=f"session {lease.key.session}")
        self._running[lease.key] = task
        self._tasks[lease] = task
        task.add_done_callback(functools.partial(self._ended, lease))

    def _owe(self, lease: Lease, how: ReleaseKind) -> None:
        self._held[lease] = how
        self._owed.add(lease)
        self._wanted.set()

    async def _give_back_asked(self) -> None:
        """Stopping: what was claimed meanwhile is for others."""
        asking, self._asking = self._asking, None
        if asking is not None:
            for claim in await asking.claims:
                if claim.lease.key not in asking.begun:
                    self._owe(claim.lease, "handed_over")

    def _ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        """Runs however the task ended, also when it was cancelled before its first step."""
        key = lease.key
        del self._tasks[lease]
        if self._running.get(key) is task:
            del self._running[key]
        if lease in self._held:
            self._owe(lease, self._held[lease])
        if key in self._heard_early:
            del self._heard_early[key]
            self._wanted.set()
        if self._left_some:
            self._wanted.set()

    async def _hearing_others(self) -> None:
        """Notice what other processes commit to the same store, while a session is held or read here."""
        async for _ in self._store.changes(wanted=self._anyone):
            if self._live.others_wrote() and self._loops:
                await self.keeper.listen()

    def _anyone(self) -> bool:
        return bool(self._loops) or self._live.listening()

    # Holding

    async def _hold(
        self, claim: Claim, claims: asyncio.Future[list[Claim]] | None, before: asyncio.Task[None] | None
    ) -> None:
        """One claimed session, from loading it to letting go of it. Whatever goes wrong, only this session feels it.

        `before` is the task of an earlier claim of the same session, which was lost and may still be ending its tools.
        """
        key = claim.lease.key
        try:
            if before is not None:
                await asyncio.wait((before,))
            await self._run(claim, claims)
        except ModelUnusableHere as error:
            log.warning("session %s is left to a process that can use its model: %s", key.session, error)
            pause = self._pace.claim_every_seconds if error.model in self._unusable_models else 0
            if error.model is not None:
                self._unusable_models.add(error.model)
            await self._give_back_after(pause, claim, "handed_over")
        except LeaseLost:
            del self._held[claim.lease]
            self.lost_leases += 1
            log.info("lost session %s", key.session)
        except asyncio.CancelledError:
            self.lost_leases += self._held[claim.lease] == "failed"
            await self._give_back(claim.lease, self._held[claim.lease])
            self._wanted.set()
            raise
        except StoreError as error:
            log.error("session %s was dropped, it will be claimed again: %s", key.session, error.message)
            await self._give_back_later(claim)
        except Exception:
            log.exception("session %s was dropped, it will be claimed again", key.session)
            await self._give_back_later(claim)
        else:
            del self._held[claim.lease]
            await self._pass_on(key)
            return
        finally:
            if self._draining:
                self._live.publish(key, Changed())  # Another process may go on with it at once.
        self._live.publish(key, Lost())  # Its last write may be on disk though nobody here was told.
        self._wanted.set()

    async def _pass_on(self, key: Key) -> None:
        """The slot that was just freed is for the owner's next turn, here or wherever there is room for it."""
        if self._store.limits.running_of(key.owner) is None:
            return
        self._wanted.set()
        with contextlib.suppress(StoreError):
            if (await self._store.turns(key.owner)).queued:
                self._live.publish(key, Changed())

    async def _run(self, claim: Claim, claims: asyncio.Future[list[Claim]] | None) -> None:
        key = claim.lease.key
        await self._let_others_ahead(claim)
        max_claims = self._bounds.max_claims_without_progress
        found = await folded(self._store, claim, max_claims=max_claims, claiming=claims)
        if found is None:
            raise LeaseLost(key)
        session = HeldSession(
            store=self._store,
            live=self._live,
            clock=self._clock,
            bounds=self._bounds,
            new_id=self._new_id,
            lease=claim.lease,
            folded=found,
            claiming=claims,
            shell=self._shell,
            observer=self._observer,
            orphans=self._orphans,
            may_work_in=self._may_work_in,
            identify=self._identify,
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
        if key in self._heard_early:
            session.heard_tail(self._heard_early.pop(key))
        state = session.state
        resumed = session.observed.resume(
            state.turn.turn_id if state.turn else None, waits=state.phase is Phase.WAITING
        )
        try:
            with resumed:
                await loop.run()
        finally:
            if self._loops.get(key) is loop:  # Not when it was lost, and claimed anew meanwhile.
                del self._loops[key]
            if self.keeper.sessions.get(key) is session:
                del self.keeper.sessions[key]
            if session.woken.is_set():
                # Put while it was being let go of: the wake-up went to this loop, which heeds it no more.
                self._wanted.set()

    async def _let_others_ahead(self, claim: Claim) -> None:
        """A large session whose last holder got nowhere may end this process as soon as it is loaded. Those that were
        claimed with it would be counted as well, and given up with it, if they never got ahead of it."""
        before = claim.claims_without_progress - 1
        if claim.loaded is None and before > 0:
            await self._clock.sleep(self._pace.claim_every_seconds * 2 ** min(before - 1, MAX_DOUBLINGS))

    async def _give_back_later(self, claim: Claim) -> None:
        """After a pause, so that a disk that is full or a bug is not met again a thousand times a second."""
        beyond = claim.claims_without_progress - self._bounds.max_claims_without_progress - 1
        doublings = max(0, min(beyond, MAX_DOUBLINGS))
        await self._give_back_after(self._pace.claim_every_seconds * 2**doublings, claim, "failed")

    async def _give_back_after(self, seconds: float, claim: Claim, how: ReleaseKind) -> None:
        """Cancelled meanwhile, it gives the claim back at once: its lease lasts as long as this process lives."""
        self._held[claim.lease] = how
        try:
            await self._clock.sleep(seconds)
        finally:
            await self._give_back(claim.lease, how)

    async def _give_back(self, lease: Lease, how: ReleaseKind) -> None:
        """Let another process, or a later try, have it at once. A claim whose release failed, or was cancelled and may
        have taken place, stays in `_held`: asking again does no harm."""
        try:
            await self._store.release(lease, seen_tail=-1, how=how)
        except StoreError:
            return
        except Exception:
            log.exception("session %s could not be given back", lease.key.session)
            return
        self._held.pop(lease, None)
        self._owed.discard(lease)

    async def _give_back_owed(self) -> None:
        for lease in list(self._owed):
            await self._give_back(lease, self._held[lease])
            if self._draining:
                self._live.publish(lease.key, Changed())  # Another process may go on with it at once.

    async def _give_back_unheard(self) -> None:
        """A claim of which nothing was heard may have taken place, now or a moment later: what is held in the name of
        this process and not run here, nobody else would run for as long as it lives."""
        if self._is_unsure_until is None:
            return
        is_last_look = self._clock.monotonic() >= self._is_unsure_until
        for lease in await self._store.held():
            if lease in self._held:
                continue
            if lease.key in self._running:
                is_last_look = False  # An earlier claim of it still ends its tools here: look again when it has.
            else:
                await self._store.release(lease, seen_tail=-1, how="handed_over")
        if is_last_look:
            self._is_unsure_until = None

    def _lost(self, key: Key | None) -> None:
        for lease, task in self._tasks.items():
            if (key is None or lease.key == key) and lease in self._held:
                self._held[lease] = "failed"
                self._end(lease.key, task)

    def _end(self, key: Key, task: asyncio.Task[None]) -> None:
        """End a session's task, and at once whatever it has started: the task itself may have to wait for the outcome
        of a write, and another process may hold the session before that comes."""
        self._cancel_once(task)
        loop = self._loops.get(key)
        if loop is not None and self._tasks.get(loop.session.lease) is task:
            loop.end_activities()

    def _cancel_once(self, task: asyncio.Task[None]) -> None:
        """A second cancellation would break into the way a session ends its tools and gives its claim back.

        `task.cancelling()` does not say whether there was a first one: a timeout inside the task that has just run out
        is counted there too, and the task goes on after it."""
        if task not in self._cancelled:
            self._cancelled.add(task)
            task.cancel()
