"""Budgets of owners and the usage of models: looked at, set and reset."""

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from holdfast.events.ids import Owner, SessionId
from holdfast.models.cost import saved_by_cache
from holdfast.models.info import TokenPrice
from holdfast.protocol.budget import (
    BudgetView,
    LimitsView,
    OwnerBudgetView,
    OwnerGauge,
    OwnerList,
    PlannedLimits,
    UsageGroup,
    UsageRow,
    UsageView,
    WindowView,
)
from holdfast.server.errors import Conflict, Invalid
from holdfast.server.operations.session_access import SessionAccess
from holdfast.store.budget import (
    NOTHING_SET,
    BudgetNow,
    Change,
    Gauge,
    OwnerBudget,
    OwnerLimits,
    Spending,
    Spent,
    bill,
    date_of,
    day_of,
    first_day,
    gauges,
    number_of,
    plan,
    reset,
    week_of,
)
from holdfast.store.errors import StoreError

MAX_OWNER_CHARACTERS: Final = 64

MAX_DAYS: Final = 366
"""The longest period that usage is summed up for."""


UNREAD: Final = WindowView(percent=None, resets_at=None, is_blocked=None)
"""A limit that could not be read."""


class BudgetVerbs(SessionAccess):
    # The budget of one owner

    async def gauge(self, owner: Owner, *, with_amounts: bool, can_reset: bool = False) -> BudgetView:
        """How much of a budget is used. It fails open: nothing depends on a gauge, and calls are held to the limits
        elsewhere."""
        try:
            found = await self.store.budget(owner)
        except StoreError:
            return BudgetView(tier=None, day=UNREAD, week=UNREAD, can_reset=can_reset)
        day, week = gauges(found, self.store.limits.spend)
        return BudgetView(
            tier=found.budget.at(found.time).tier or None,
            day=window_view(day, with_amounts=with_amounts),
            week=window_view(week, with_amounts=with_amounts),
            can_reset=can_reset,
        )

    async def owner_budget(self, owner: Owner) -> OwnerBudgetView:
        """All that is kept about an owner's limits. An owner that nobody knows has nothing set."""
        check_owner(owner)
        found = await self.store.budget(owner)
        day, week = gauges(found, self.store.limits.spend)
        return OwnerBudgetView(
            owner=owner,
            day=window_view(day, with_amounts=True),
            week=window_view(week, with_amounts=True),
            limits=_limits_view(found.budget.at(found.time)),
            planned=tuple(
                PlannedLimits(at=change.at, limits=_limits_view(change.to))
                for change in found.budget.planned
                if change.at > found.time
            ),
            resets=found.budget.resets,
            billing_version=found.budget.version,
        )

    async def set_limits(self, owner: Owner, limits: OwnerLimits, *, at: int = 0) -> None:
        """Set an owner's limits, at once or from a time on. They take the place of all that is set or planned for that
        time or later. Durable on return."""
        check_owner(owner)
        self._check_tier(limits.tier)
        told = self._told("budget.set", owner, owner=owner, detail=_detail(limits, at))
        await self.store.edit_budget(
            owner, lambda seen: plan(seen.budget, Change(at=at, to=limits), seen.time), audit=told
        )

    async def bill(self, owner: Owner, limits: OwnerLimits, *, at: int, message_id: str, version: int) -> bool:
        """Set an owner's limits as a billing system says. False: it said something newer before, or this very thing."""
        check_owner(owner)
        self._check_tier(limits.tier)

        def apply(seen: BudgetNow) -> OwnerBudget | None:
            change = Change(at=at, to=limits)
            return bill(seen.budget, change, message_id=message_id, version=version, now=seen.time)

        told = self._told(
            "budget.set", owner, owner=owner, detail=f"by billing, version {version}: {_detail(limits, at)}"
        )
        return await self.store.edit_budget(owner, apply, audit=told)

    async def reset_budget(self, owner: Owner) -> None:
        """Give an owner the day back, and one day's allowance to the week. Durable on return."""
        check_owner(owner)
        told = self._told("budget.reset", owner, owner=owner)
        if not await self.store.edit_budget(owner, self.after_reset, audit=told):
            raise reset_refused()

    def after_reset(self, seen: BudgetNow) -> OwnerBudget | None:
        """The budget after a reset; None if there is nothing to reset."""
        caps = self.store.limits.spend.caps(seen.budget.at(seen.time))
        return reset(seen.budget, caps, seen.spent, seen.time)

    def _check_tier(self, name: str) -> None:
        known = self.store.limits.spend.tiers
        if name and name not in known:
            allowed = ", ".join(sorted(known)) or "none, because HOLDFAST_BUDGET_TIERS is not set"
            raise Invalid("tier_unknown", f"There is no budget tier {name!r}. Known: {allowed}.")

    # All owners

    async def owners_near(self, percent: float, *, limit: int) -> OwnerList:
        """The owners who have used at least so much of a day or a week, the nearest to a limit first."""
        now = (await self.store.budget(Owner(""))).time  # By the store's clock.
        today = day_of(now)
        monday = first_day(week_of(today))
        of_day, of_week = await self._charged(today, today), await self._charged(monday, monday + 6)
        budgets = await self.store.budgets()
        found: list[tuple[float, OwnerGauge]] = []
        for owner in {*of_week, *budgets}:
            spent = Spent(day=of_day.get(owner, 0), week=of_week.get(owner, 0))
            budget = budgets.get(owner, NOTHING_SET)
            day, week = gauges(BudgetNow(budget=budget, spent=spent, time=now), self.store.limits.spend)
            used = max(day.percent or 0.0, week.percent or 0.0)
            if used >= percent and not day.cap is week.cap is None:
                found.append((used, _owner_gauge(owner, budget.at(now).tier, day, week)))
        found.sort(key=lambda each: (-each[0], each[1].owner))
        return OwnerList(owners=tuple(gauge for _, gauge in found[:limit]))

    async def _charged(self, first: int, last: int) -> dict[Owner, int]:
        sums: dict[Owner, int] = {}
        for row in await self.store.spending_by("owner", first, last):
            sums[row.owner] = sums.get(row.owner, 0) + row.charged
        return sums

    async def usage_by(
        self,
        group: UsageGroup,
        *,
        first: datetime.date | None = None,
        last: datetime.date | None = None,
        owner: Owner | None = None,
        session: SessionId | None = None,
        limit: int,
    ) -> UsageView:
        """What model calls used from one UTC day to another, both included: by default in the last 30 days."""
        today = day_of((await self.store.budget(Owner(""))).time)  # By the store's clock.
        end = today if last is None else number_of(last)
        start = end - 29 if first is None else number_of(first)
        if not 0 <= end - start < MAX_DAYS:
            raise Invalid("period_invalid", f"A period has 1 to {MAX_DAYS} days, the first before the last.")
        rows = await self.store.spending_by(group, start, end, owner=owner, session=session, limit=limit + 1)
        models = await self.store.spending_by("model", start, end, owner=owner, session=session)
        prices = {name: await self._find_price(name) for name in {row.model for row in (*rows, *models)}}
        groups: dict[tuple[Owner, int, SessionId, str], list[Spending]] = {}
        for row in rows:
            groups.setdefault((row.owner, row.day, row.session, row.model if group == "model" else ""), []).append(row)
        shown = [_usage_row(group, found, prices) for found in list(groups.values())[:limit]]
        if group == "day":
            shown.sort(key=lambda row: str(row.day))
        return UsageView(
            first=date_of(start),
            last=date_of(end),
            group=group,
            rows=tuple(shown),
            total=_usage_row(None, models, prices),
            more=len(groups) > limit,
        )


def check_owner(owner: str) -> None:
    if not owner.strip() or len(owner) > MAX_OWNER_CHARACTERS or not owner.isprintable():
        raise Invalid("owner_invalid", f"An owner has 1 to {MAX_OWNER_CHARACTERS} printable characters.")


def reset_refused() -> Conflict:
    return Conflict("reset_refused", "There is nothing to reset: this day's budget has no limit, or is not used up.")


def window_view(gauge: Gauge, *, with_amounts: bool) -> WindowView:
    view = WindowView(percent=gauge.percent, resets_at=gauge.resets_at, is_blocked=gauge.is_blocked)
    if not with_amounts:
        return view
    return msgspec.structs.replace(view, limit_microdollars=gauge.cap, spent_microdollars=gauge.spent)


def _owner_gauge(owner: Owner, tier: str, day: Gauge, week: Gauge) -> OwnerGauge:
    return OwnerGauge(
        owner=owner,
        tier=tier or None,
        day=window_view(day, with_amounts=True),
        week=window_view(week, with_amounts=True),
    )


def _limits_view(limits: OwnerLimits) -> LimitsView:
    return LimitsView(tier=limits.tier, day_microdollars=limits.day, week_microdollars=limits.week)


def _usage_row(group: UsageGroup | None, rows: Sequence[Spending], prices: dict[str, TokenPrice | None]) -> UsageRow:
    """The sums of the models of one group; of no group, of all."""
    saved = [
        saved_by_cache(row.cache_read_tokens, row.cache_write_tokens, price)
        for row in rows
        if (price := prices[row.model]) is not None
    ]
    sums = UsageRow(
        calls=sum(row.calls for row in rows),
        unknown_calls=sum(row.unknown for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cache_read_tokens=sum(row.cache_read_tokens for row in rows),
        cache_write_tokens=sum(row.cache_write_tokens for row in rows),
        cost_microdollars=sum(row.cost for row in rows),
        charged_microdollars=sum(row.charged for row in rows),
        saved_microdollars=sum(saved) if saved else None,
    )
    match group:
        case "owner":
            return msgspec.structs.replace(sums, owner=rows[0].owner)
        case "session":
            return msgspec.structs.replace(sums, owner=rows[0].owner, session=rows[0].session)
        case "model":
            return msgspec.structs.replace(sums, model=rows[0].model)
        case "day":
            return msgspec.structs.replace(sums, day=date_of(rows[0].day))
        case None:
            return sums


def _detail(limits: OwnerLimits, at: int) -> str:
    """A change of limits, for the audit log."""
    said = [f"tier {limits.tier}"] if limits.tier else []
    said += [f"{name} {value}" for name in ("day", "week") if (value := getattr(limits, name)) is not UNSET]
    said += [f"from {at}"] if at else []
    return ", ".join(said) or "the defaults"
