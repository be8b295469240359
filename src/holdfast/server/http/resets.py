"""Resets that people ask for: an outside system grants them, and learns if there was none in the end.

What it is asked for is stored first. The write that makes the reset takes it away, or the one that follows a confirmed
refund. So a crash before the question leaves a refund of something that was never granted, a crash after it a refund of
what may have been granted, and a crash after the reset nothing; any server of the database makes the refunds.
"""

import logging
from typing import Final

from msgspec.structs import replace

from holdfast.events.ids import Owner, random_id
from holdfast.server.errors import Conflict
from holdfast.server.http.credit_hook import CreditHook, CreditRequest
from holdfast.server.http.errors import ApiError
from holdfast.server.operations import Operations
from holdfast.server.operations.budgets import reset_refused
from holdfast.store.budget import BudgetNow, Credit, OwnerBudget
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 60.0

ABANDONED_MS: Final = 120_000
"""After this time nobody works on a reset any more: its process died, or lost the database."""

RETRY_SECONDS: Final = 30.0


class Resets:
    """One per process."""

    def __init__(self, operations: Operations, hook: CreditHook, clock: Clock) -> None:
        self._operations = operations
        self._store = operations.store
        self._hook = hook
        self._clock = clock

    async def reset(self, owner: Owner) -> None:
        """Reset the owner's day, if the outside system grants that. Durable on return."""
        credit = await self._begin(owner)
        answer = await self._hook.ask(await self._request(owner, credit))
        if answer == "declined":
            await self._drop(owner, credit)
            raise ApiError(402, "reset_declined", "The reset was declined. Your budget stays as it is.")
        if answer == "unknown":
            await self._refund(owner, credit)
            raise _unavailable()
        if not await self._finish(owner, credit):
            await self._refund(owner, credit)
            raise reset_refused()

    async def _begin(self, owner: Owner) -> Credit:
        """Store what is about to be asked for. One at a time: a refund that is due comes first."""
        credit, found = Credit(id=random_id(), at=0), list[BudgetNow]()

        def begin(seen: BudgetNow) -> OwnerBudget | None:
            found[:] = [seen]
            if seen.budget.credit is not None or self._operations.after_reset(seen) is None:
                return None
            return replace(seen.budget, credit=replace(credit, at=seen.time))

        if await self._store.edit_budget(owner, begin):
            return credit
        (seen,) = found
        if seen.budget.credit is None:
            raise reset_refused()
        if not _is_abandoned(seen.budget.credit, seen.time):
            raise Conflict("reset_under_way", "A reset of this budget is under way.")
        if not await self._refund(owner, seen.budget.credit):
            raise _unavailable()
        return await self._begin(owner)

    async def _finish(self, owner: Owner, credit: Credit) -> bool:
        """Make the reset. False: there is nothing to reset any more, or the credit was refunded meanwhile."""

        def finish(seen: BudgetNow) -> OwnerBudget | None:
            kept = seen.budget.credit
            if not _is(kept, credit) or (kept is not None and kept.is_refunded):
                return None
            after = self._operations.after_reset(seen)
            return None if after is None else replace(after, credit=None)

        return await self._store.edit_budget(owner, finish)

    async def _refund(self, owner: Owner, credit: Credit) -> bool:
        """Refund a credit, unless it was used. True: that is done. Marked as refunded before anyone is told, it makes
        no reset any more."""

        def mark(seen: BudgetNow) -> OwnerBudget | None:
            if not _is(seen.budget.credit, credit):
                return None
            return replace(seen.budget, credit=replace(credit, at=seen.time, is_refunded=True))

        if not await self._store.edit_budget(owner, mark):
            return True
        if not await self._hook.refund(await self._request(owner, credit)):
            return False
        await self._drop(owner, credit)
        return True

    async def _drop(self, owner: Owner, credit: Credit) -> None:
        await self._store.edit_budget(
            owner, lambda seen: replace(seen.budget, credit=None) if _is(seen.budget.credit, credit) else None
        )

    async def _request(self, owner: Owner, credit: Credit) -> CreditRequest:
        found = await self._store.budget(owner)
        tier = found.budget.at(found.time)
        return CreditRequest(
            credit_id=credit.id,
            owner=owner,
            tier=tier.tier,
            day_microdollars=self._store.limits.spend.caps(tier).day,
        )

    # Refunds that are due

    async def keep_refunding(self) -> None:
        """Refund what is due, every minute."""
        while True:
            try:
                await self.refund_due()
            except StoreError as error:
                log.warning("could not look for refunds: %s", error)
            await self._clock.sleep(SWEEP_SECONDS)

    async def refund_due(self) -> None:
        for owner, budget in (await self._store.budgets()).items():
            credit = budget.credit
            if credit is not None and _is_abandoned(credit, (await self._store.budget(owner)).time):
                await self._refund(owner, credit)


def _is(kept: Credit | None, credit: Credit) -> bool:
    return kept is not None and kept.id == credit.id


def _is_abandoned(credit: Credit, now: int) -> bool:
    return credit.is_refunded or credit.at + ABANDONED_MS < now


def _unavailable() -> ApiError:
    message = "It is not known whether the reset was granted, so there is none. Try again later; nothing is lost."
    return ApiError(503, "credit_unavailable", message, retry_after=RETRY_SECONDS)
