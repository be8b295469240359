"""Budgets and usage as they are served. Amounts of money are for admins; people see how much of a budget is used."""

import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

UsageGroup = Literal["owner", "model", "session", "day"]


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """How much is used of the budget of a day or a week."""

    percent: float | None
    """With one decimal, and exactly 100 at the limit or over it. None: there is no limit, or it could not be read."""
    resets_at: int | None
    """When there is room again, in milliseconds. None: no limit, a limit of 0, or it could not be read."""
    is_blocked: bool | None
    """Nothing is left. None: that could not be read."""
    limit_microdollars: int | UnsetType | None = UNSET
    """For admins. None: no limit."""
    spent_microdollars: int | UnsetType = UNSET
    """For admins: what was charged and is reserved, without what resets gave back."""


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's own budget."""

    tier: str | None
    """The budget tier; None: none was set, or it could not be read."""
    day: WindowView
    week: WindowView
    can_reset: bool = False
    """The caller may ask for a reset of a day that is used up: `POST /v1/budget/reset`."""


class LimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an owner, as they were set. A limit that is left out is that of the budget tier."""

    tier: str
    """Empty: none."""
    day_microdollars: int | UnsetType | None = UNSET
    """None: no limit; 0: nothing may be spent."""
    week_microdollars: int | UnsetType | None = UNSET


class PlannedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold from a time on."""

    at: int
    limits: LimitsView


class OwnerBudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of an owner, for admins."""

    owner: str
    day: WindowView
    week: WindowView
    limits: LimitsView
    planned: tuple[PlannedLimits, ...]
    resets: int
    """How many resets the owner has had."""
    billing_version: int
    """The number of the last change that a billing system made; 0: none."""


class OwnerGauge(msgspec.Struct, frozen=True, kw_only=True):
    """How near an owner is to their limits, by what was charged; what is reserved is not counted."""

    owner: str
    tier: str | None
    day: WindowView
    week: WindowView


class OwnerList(msgspec.Struct, frozen=True, kw_only=True):
    owners: tuple[OwnerGauge, ...]
    """The nearest to a limit first."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The model calls of a group."""

    owner: str | UnsetType = UNSET
    session: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    day: datetime.date | UnsetType = UNSET
    calls: int
    unknown_calls: int
    """Calls that did not report what they cost."""
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_microdollars: int
    """The known costs together."""
    charged_microdollars: int
    """The same, with what was charged for calls of unknown cost."""
    saved_microdollars: int | None
    """What the cache of the provider saved, at the present prices of the models; None if none of them is known."""


class UsageView(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """What model calls used in some UTC days, by group."""

    first: datetime.date
    last: datetime.date
    group: UsageGroup
    rows: tuple[UsageRow, ...]
    """The groups that were charged the most first; days in their order."""
    total: UsageRow
    """Of all groups, also of those that are left out."""
    more: bool
    """There are more groups."""


class BillingReceipt(msgspec.Struct, frozen=True, kw_only=True):
    applied: bool
    """False: this message, or a newer one for the same owner, was applied before."""
