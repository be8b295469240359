"""Runs one claimed session: loads it, runs its loop until it is released, and releases it if the loop could not."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from holdfast.events.ids import Key
from holdfast.files.files import Files
from holdfast.live.live import Changed, Live, Lost
from holdfast.models.credentials import Credentials
from holdfast.observability.observer import Observer
from holdfast.session.bounds import Bounds
from holdfast.session.state import Phase
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Claim, ReleaseKind, Store
from holdfast.tasks.shell import Shell
from holdfast.tools.registry import Registry
from holdfast.tools.working_directory import Identify
from holdfast.turns.budgets import Budgets
from holdfast.turns.call_context import Models
from holdfast.turns.errors import LeaseLost, ModelUnusableHere
from holdfast.turns.held_session import HeldSession, MayWorkIn
from holdfast.turns.load import load_claimed
from holdfast.turns.loop import TurnLoop
from holdfast.turns.prompts import Prompts
from holdfast.turns.titles import Titles
from holdfast.workers.holds import Hold, Holds
from holdfast.workers.lease_keeper import LeaseKeeper
from holdfast.workers.pace import Pace

log = logging.getLogger(__name__)

MAX_DOUBLINGS = 6
"""Bound of the backoff for a session that fails before anything can be decided: about one try a minute."""


class SessionRunner:
    """Runs the claimed sessions of this process, each in a task of its own (`Holds.start`)."""

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
        credentials: Credentials | None,
        shell: Shell | None,
        files: Files | None,
        prompts: Prompts,
        compaction_model: str | None,
        fallback_model: str | None,
        observer: Observer,
        new_id: Callable[[], str],
        may_work_in: MayWorkIn,
        identify: Identify,
        holds: Holds,
        keeper: LeaseKeeper,
        wakeup: asyncio.Event,
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
        self._files = files
        self._prompts = prompts
        self._compaction_model = compaction_model
        self._fallback_model = fallback_model
        self._observer = observer
        self._new_id = new_id
        self._may_work_in = may_work_in
        self._identify = identify
        self._holds = holds
        self._keeper = keeper
        self._wakeup = wakeup
        self._budgets = Budgets(store, clock)
        self.titles = Titles(store=store, live=live, clock=clock, new_id=new_id)
        self.unusable_models: set[str] = set()
        """Models that this process could not use: it leaves their sessions to other processes."""
        self._lingering: set[HeldSession] = set()
        """Sessions that only wait for a person or a client, and are about to be released."""
        self.orphans: set[asyncio.Task[Any]] = set()
        """Tools that were cancelled and still run though their session was released."""

    async def run(self, hold: Hold, claim: Claim, pending: asyncio.Future[list[Claim]] | None) -> None:
        """Run one session until it is released. An error ends the run of this session only. `pending` is the claim, if
        it is not yet committed.

        Earlier tasks of the session are waited for even if this claim is lost meanwhile: a release lets another process
        start what they are still ending."""
        key = claim.lease.key
        ended_by_itself = False
        try:
            await hold.wait_for_earlier()
            await self._run_loop(hold, claim, pending)
        except ModelUnusableHere as error:
            log.warning("session %s is left to a process that can use its model: %s", key.session, error)
            pause = self._pace.claim_every_seconds if error.model in self.unusable_models else 0
            if error.model is not None:
                self.unusable_models.add(error.model)
            await self._release_after(pause, hold, "handed_over")
        except LeaseLost:
            hold.release_kind = None
            self._holds.lost_leases += 1
            log.info("lost session %s", key.session)
        except asyncio.CancelledError:
            await hold.wait_for_earlier()
            assert hold.release_kind is not None
            self._holds.lost_leases += hold.release_kind == "failed"
            await self._holds.release(hold, hold.release_kind)
            raise
        except StoreError as error:
            log.error("session %s was dropped, it will be claimed again: %s", key.session, error.message)
            await self._release_after_backoff(hold, claim)
        except Exception:
            log.exception("session %s was dropped, it will be claimed again", key.session)
            await self._release_after_backoff(hold, claim)
        else:
            ended_by_itself = True
            hold.release_kind = None
            await self._offer_freed_slot(key)
        finally:
            if self._holds.draining:
                self._live.publish(key, Changed())  # Another process may go on with it at once.
            if not ended_by_itself:
                self._cut_off(key)

    def others_changed(self, key: Key | None) -> None:
        """Let lingering sessions look again: another session of their owner changed; None: perhaps any did."""
        for session in sorted(self._lingering, key=lambda lingering: lingering.key):
            if key is None or key.owner == session.key.owner:
                session.others_changed.set()

    async def _others_wait(self, key: Key) -> bool:
        """Whether other sessions wait for a free place in this process, or for a slot of the same owner."""
        is_full = self._holds.free_places <= 0
        if is_full and await self._store.has_next(without_models=self.unusable_models):
            return True
        limit = self._store.limits.running_of(key.owner)
        turns = None if limit is None else await self._store.turns(key.owner)
        return limit is not None and turns is not None and turns.queued > 0 and turns.slots >= limit

    async def _run_loop(self, hold: Hold, claim: Claim, pending: asyncio.Future[list[Claim]] | None) -> None:
        """Load the session and run its loop until it is released."""
        await self._let_others_ahead(claim)
        session = await self._load(claim, pending)
        loop = TurnLoop(
            session,
            claim,
            node=self._node,
            models=self._models,
            credentials=self._credentials,
            registry=self._registry,
            compaction_model=self._compaction_model,
            fallback_model=self._fallback_model,
            budgets=self._budgets,
            titles=self.titles,
            lingering=self._lingering,
            others_wait=self._others_wait,
        )
        loop.draining = self._holds.draining
        key = session.key
        self._keeper.sessions[key] = session
        self._holds.loaded(hold, loop)
        state = session.state
        resumed = session.observed.resume(
            state.turn.turn_id if state.turn else None, waits=state.phase is Phase.WAITING
        )
        try:
            with resumed:
                await loop.run()
        finally:
            hold.loop = None
            if self._keeper.sessions.get(key) is session:  # Another, if the session was lost and claimed again.
                del self._keeper.sessions[key]
            if session.woken.is_set():
                # An item was put during the release: its wake-up went to this loop, which no longer reacts to it.
                self._wakeup.set()

    async def _load(self, claim: Claim, pending: asyncio.Future[list[Claim]] | None) -> HeldSession:
        max_claims = self._bounds.max_claims_without_progress
        folded = await load_claimed(self._store, claim, max_claims=max_claims, claiming=pending)
        if folded is None:
            raise LeaseLost(claim.lease.key)
        return HeldSession(
            store=self._store,
            live=self._live,
            clock=self._clock,
            bounds=self._bounds,
            new_id=self._new_id,
            lease=claim.lease,
            folded=folded,
            claiming=pending,
            shell=self._shell,
            files=self._files,
            observer=self._observer,
            orphans=self.orphans,
            may_work_in=self._may_work_in,
            identify=self._identify,
            lease_seconds_left=self._keeper.seconds_left,
            prompts=self._prompts,
        )

    async def _let_others_ahead(self, claim: Claim) -> None:
        """Delay a large session whose last holders made no progress: loading it may kill this process. Otherwise the
        sessions that were claimed with it would never get ahead of it; the same claims would be counted against them,
        and they would be given up with it."""
        before = claim.claims_without_progress - 1
        if claim.loaded is None and before > 0:
            await self._clock.sleep(self._pace.claim_every_seconds * 2 ** min(before - 1, MAX_DOUBLINGS))

    def _cut_off(self, key: Key) -> None:
        """A run of a session did not end by itself; its release may have been cancelled, too. Its last write may be on
        disk though its outcome never arrived here: readers look for it in the store, and the claim loop for what is
        left to do."""
        self._live.publish(key, Lost())
        self._wakeup.set()

    async def _offer_freed_slot(self, key: Key) -> None:
        """Wake all workers if the owner has a queued turn: it may take the slot that was just freed, in any process."""
        if self._store.limits.running_of(key.owner) is None:
            return
        self._wakeup.set()
        with contextlib.suppress(StoreError):
            if (await self._store.turns(key.owner)).queued:
                self._live.publish(key, Changed())

    async def _release_after_backoff(self, hold: Hold, claim: Claim) -> None:
        """Release after a backoff, so that a full disk or a bug is not hit again a thousand times a second."""
        beyond = claim.claims_without_progress - self._bounds.max_claims_without_progress - 1
        doublings = max(0, min(beyond, MAX_DOUBLINGS))
        await self._release_after(self._pace.claim_every_seconds * 2**doublings, hold, "failed")

    async def _release_after(self, seconds: float, hold: Hold, kind: ReleaseKind) -> None:
        """Release after a pause, or at once if cancelled: a lease that is kept lasts as long as this process lives."""
        hold.release_kind = kind
        try:
            await self._clock.sleep(seconds)
        finally:
            await self._holds.release(hold, kind)
