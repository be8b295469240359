"""Budgets: people see how much of their own is used; admins see and set those of all owners, and what was spent."""

import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from holdfast.events.ids import Owner, SessionId
from holdfast.protocol.budget import BudgetView, OwnerBudgetView, OwnerList, UsageGroup, UsageView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.service import RESET
from holdfast.server.http.wire import json_response
from holdfast.store.budget import DAY_MS, OwnerLimits, number_of

MOST_MICRODOLLARS = 10**15
"""A thousand million dollars: more is an error of the client."""

Amount = Annotated[int, Meta(ge=0, le=MOST_MICRODOLLARS)]
TierName = Annotated[str, Meta(max_length=32)]


class LimitsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an owner. They take the place of all limits that were set before."""

    tier: TierName = ""
    """A budget tier of `HOLDFAST_BUDGET_TIERS`; empty: none."""
    day_microdollars: Amount | UnsetType | None = UNSET
    """In place of the limit of the tier. Null: no limit; 0: nothing may be spent."""
    week_microdollars: Amount | UnsetType | None = UNSET
    start: datetime.date | None = msgspec.field(default=None, name="from")
    """The UTC day from which they hold; left out, or past: they hold at once, and nothing else stays planned."""

    def limits(self) -> OwnerLimits:
        return OwnerLimits(tier=self.tier, day=self.day_microdollars, week=self.week_microdollars)

    def at(self) -> int:
        """When they begin to hold, in milliseconds; 0: at once."""
        return 0 if self.start is None else number_of(self.start) * DAY_MS


class OwnersQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    near: Annotated[float, Meta(ge=0, le=100)] = 80.0
    """Only owners who have used at least this percentage of a day or a week."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first: datetime.date | None = msgspec.field(default=None, name="from")
    """The first UTC day; left out: 29 days before the last."""
    last: datetime.date | None = msgspec.field(default=None, name="to")
    """The last UTC day; left out: today."""
    owner: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    group: UsageGroup = "day"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 400
    """At most so many groups: those that were charged the most."""


@endpoint("GET", "/v1/budget", summary="How much of the caller's budget is used", result=BudgetView)
async def show(call: HttpCall) -> Response:
    identity = call.identity
    gauge = await call.operations.gauge(
        identity.owner, with_amounts=identity.is_admin, can_reset=call.service.resets is not None
    )
    return json_response(gauge)


@endpoint("POST", RESET, summary="Have the day given back, if the operator's credit hook grants it", result=BudgetView)
async def reset_own(call: HttpCall) -> Response:
    resets, identity = call.service.resets, call.identity
    assert resets is not None, "without a hook there is no such route"
    await resets.reset(identity.owner)
    gauge = await call.operations.gauge(identity.owner, with_amounts=identity.is_admin, can_reset=True)
    return json_response(gauge)


@endpoint("GET", "/v1/usage", summary="What model calls used; for admins", query=UsageQuery, result=UsageView)
async def show_usage(call: HttpCall) -> Response:
    await call.check_admin()
    query = call.query(UsageQuery)
    usage = await call.operations.usage_by(
        query.group,
        first=query.first,
        last=query.last,
        owner=None if query.owner is None else Owner(query.owner),
        session=None if query.session is None else SessionId(query.session),
        limit=query.limit,
    )
    return json_response(usage)


@endpoint("GET", "/v1/owners", summary="Owners near a limit; for admins", query=OwnersQuery, result=OwnerList)
async def list_owners(call: HttpCall) -> Response:
    await call.check_admin()
    query = call.query(OwnersQuery)
    return json_response(await call.operations.owners_near(query.near, limit=query.limit))


@endpoint("GET", "/v1/owners/{owner}/budget", summary="The budget of an owner; for admins", result=OwnerBudgetView)
async def show_owner(call: HttpCall) -> Response:
    await call.check_admin()
    return json_response(await call.operations.owner_budget(Owner(call.path("owner"))))


@endpoint(
    "PUT",
    "/v1/owners/{owner}/budget",
    summary="Set the budget tier and the limits of an owner; for admins",
    body=LimitsBody,
    result=OwnerBudgetView,
)
async def set_owner(call: HttpCall) -> Response:
    await call.check_admin()
    body, owner = await call.body(LimitsBody), Owner(call.path("owner"))
    await call.operations.set_limits(owner, body.limits(), at=body.at())
    return json_response(await call.operations.owner_budget(owner))


@endpoint(
    "POST",
    "/v1/owners/{owner}/budget/reset",
    summary="Give an owner the day back; for admins",
    result=OwnerBudgetView,
)
async def reset_owner(call: HttpCall) -> Response:
    await call.check_admin()
    owner = Owner(call.path("owner"))
    await call.operations.reset_budget(owner)
    return json_response(await call.operations.owner_budget(owner))
