"""Claims runnable sessions: on each wake-up, and at least every `claim_every_seconds`.

    resting ── wake-up, or the interval is over ──► claiming ── the store answers ──► resting
                                                       │
                                                       └── the store fails ──► in doubt

*Claiming*: one claim is pending. Sessions that it starts early do not wait for its commit. Wake-ups are kept while it
is pending: the store may already have granted this process the session.

*In doubt*: a claim whose outcome is unknown may have succeeded, or may succeed a moment later, and no other process
could run its sessions for as long as this one lives. For a lease TTL after the failure, each round begins by releasing
the sessions that this process holds, as the store says, and does not run. Rounds go on claiming; only a wake-up no
longer claims at once.

*Stopped*: no round begins any more; the sessions that the pending claim still returns are handed over.
"""

import asyncio
import contextlib
import functools
import logging

from holdfast.events.ids import Key
from holdfast.session.fold import FOLD_VERSION
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Claim, Lease, Store
from holdfast.workers.holds import Holds
from holdfast.workers.lease_keeper import LeaseKeeper
from holdfast.workers.pace import Pace
from holdfast.workers.session_run import SessionRunner

log = logging.getLogger(__name__)


class PendingClaim:
    """A claim that the store is carrying out, and the sessions that were started before the store confirmed it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.started: set[Lease] = set()
        self.claims: asyncio.Future[list[Claim]]


class Claimer:
    """Takes leases from the store and starts their sessions."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        pace: Pace,
        holds: Holds,
        keeper: LeaseKeeper,
        runner: SessionRunner,
        wakeup: asyncio.Event,
    ) -> None:
        self._store = store
        self._clock = clock
        self._pace = pace
        self._holds = holds
        self._keeper = keeper
        self._wakeup = wakeup
        self._runner = runner
        self._pending: PendingClaim | None = None
        self._in_doubt_until: float | None = None

    def wake(self, key: Key | None, tail: int | None) -> None:
        """Take a wake-up: pass it to the session if it is held here, keep it if a pending claim may bring the session,
        or else begin a round soon; None may be any session.

        A claim is sent at once if nothing has to be released first: it then joins the transaction of the put."""
        self._runner.others_changed(key)
        if key is not None and self._holds.note_tail(key, tail, claim_is_pending=self._pending is not None):
            return
        self._wakeup.set()
        if (
            self._pending is None
            and self._may_claim()
            and not self._holds.owes_releases
            and self._in_doubt_until is None
        ):
            self._send_claim()

    async def run(self) -> None:
        """Claim until cancelled; then hand over what the last claim still returns."""
        try:
            while True:
                self._wakeup.clear()
                await self._round()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pace.claim_every_seconds):
                        await self._wakeup.wait()
        finally:
            await self._hand_over_pending()

    async def _round(self) -> None:
        """Release what is left to release, and claim."""
        try:
            await self._holds.retry_releases()
            await self._release_doubtful_claims()
            await self._claim()
        except StoreError as error:
            self._in_doubt_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
            log.warning("could not claim: %s", error.message)
        except Exception:
            self._in_doubt_until = self._clock.monotonic() + self._pace.lease_ttl_seconds
            log.exception("could not claim")

    def _may_claim(self) -> bool:
        return self._holds.free_places > 0 and self._keeper.trusted() and not self._holds.draining

    def _send_claim(self) -> PendingClaim:
        """Send a claim for as many sessions as this process has room for, without waiting for the result."""
        pending = self._pending = PendingClaim(self._holds.free_places)
        pending.claims = asyncio.ensure_future(
            self._store.claim(
                limit=pending.limit,
                without_models=self._runner.unusable_models,
                fold_version=FOLD_VERSION,
                early=functools.partial(self._start_early, pending),
            )
        )
        return pending

    async def _claim(self) -> None:
        """Wait for the pending claim, or send one, and start the sessions that it returns."""
        holds = self._holds
        holds.more_may_wait = holds.free_places <= 0
        if self._pending is None and not self._may_claim():
            return
        pending = self._pending or self._send_claim()
        try:
            claims = await asyncio.shield(pending.claims)
        except Exception:
            for lease in pending.started:
                holds.lose(lease)
            self._pending = None
            raise
        self._pending = None
        holds.more_may_wait = len(claims) == pending.limit
        for claim in claims:
            if claim.lease not in pending.started:
                self._start_session(claim, None)
        if holds.forget_tails_of_others() or (holds.more_may_wait and holds.free_places > 0):
            self._wakeup.set()  # Sessions became runnable, or ended here, while the claim was pending.

    def _start_early(self, pending: PendingClaim, claims: list[Claim]) -> None:
        """Start sessions before their claim is committed. Their first unit is queued after the claim, so deciding on
        it need not wait for the commit."""
        for claim in claims:
            if claim.loaded is not None and self._pending is pending and not self._holds.draining:
                pending.started.add(claim.lease)
                self._start_session(claim, pending.claims)

    def _start_session(self, claim: Claim, pending: asyncio.Future[list[Claim]] | None) -> None:
        """Start a session. `pending` is the claim, if it is not yet committed."""
        if self._keeper.trusted():
            run = functools.partial(self._runner.run, claim=claim, pending=pending)
            self._holds.start(claim.lease, run)
        else:  # The result of the claim came too late: another process may hold the session by now.
            self._holds.release_soon(claim.lease, "failed")

    async def _release_doubtful_claims(self) -> None:
        """Release sessions that the store says this process holds, and that it does not run."""
        if self._in_doubt_until is None:
            return
        is_last_look = self._clock.monotonic() >= self._in_doubt_until
        for lease in await self._store.held():
            if self._holds.is_unreleased(lease):
                continue
            if self._holds.tasks_of(lease.key):
                is_last_look = False  # An earlier claim of it is still ending its tools here: look again after that.
            else:
                await self._store.release(lease, seen_tail=-1, how="handed_over")
        if is_last_look:
            self._in_doubt_until = None

    async def _hand_over_pending(self) -> None:
        """On stop: leave the sessions that the pending claim returns, and that were not started, to other processes."""
        pending, self._pending = self._pending, None
        if pending is not None:
            for claim in await pending.claims:
                if claim.lease not in pending.started:
                    self._holds.release_soon(claim.lease, "handed_over")
