"""`holdfast budgets`: the limits of owners, and who is near one."""

import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.cli.escapes import visible
from holdfast.cli.runtime import open_runtime
from holdfast.cli.usage import dollars, parsed_date
from holdfast.config import Config, microdollars_of
from holdfast.events.ids import Owner
from holdfast.protocol.budget import LimitsView, OwnerBudgetView, WindowView
from holdfast.store.budget import DAY_MS, OwnerLimits, number_of

MAX_SHOWN: Final = 1_000


async def list_owners(config: Config, near: float, *, as_json: bool) -> None:
    async with open_runtime(config, work=False) as runtime:
        found = (await runtime.operations.owners_near(near, limit=MAX_SHOWN)).owners
    if as_json:
        for owner in found:
            print(msgspec.json.encode(owner).decode())
        return
    for owner in found:
        print(f"{visible(owner.owner)}  {owner.tier or '-'}  day {_used(owner.day)}  week {_used(owner.week)}")
    if not found:
        print(f"No owner has used {near:g} % of a limit.")


async def show_budget(config: Config, owner: str, *, as_json: bool) -> None:
    async with open_runtime(config, work=False) as runtime:
        view = await runtime.operations.owner_budget(Owner(owner))
    _print(view, as_json=as_json)


async def set_budget(
    config: Config,
    owner: str,
    *,
    tier: str,
    day: str | None,
    week: str | None,
    start: str | None,
    as_json: bool,
) -> None:
    limits = OwnerLimits(tier=tier, day=_amount("--day", day), week=_amount("--week", week))
    begins = parsed_date(start)
    async with open_runtime(config, work=False) as runtime:
        await runtime.operations.set_limits(
            Owner(owner), limits, at=0 if begins is None else number_of(begins) * DAY_MS
        )
        view = await runtime.operations.owner_budget(Owner(owner))
    _print(view, as_json=as_json)


async def reset_budget(config: Config, owner: str, *, as_json: bool) -> None:
    async with open_runtime(config, work=False) as runtime:
        await runtime.operations.reset_budget(Owner(owner))
        view = await runtime.operations.owner_budget(Owner(owner))
    _print(view, as_json=as_json)


def _amount(option: str, given: str | None) -> int | UnsetType | None:
    """A limit in microdollars; `none` is no limit."""
    if given is None:
        return UNSET
    if given == "none":
        return None
    return microdollars_of(option, given)


def _print(view: OwnerBudgetView, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(view).decode())
        return
    print(f"{visible(view.owner)}: {_limits(view.limits)}")
    print(f"  day   {_used(view.day)}")
    print(f"  week  {_used(view.week)}")
    for planned in view.planned:
        print(f"  from {_utc(planned.at)}: {_limits(planned.limits)}")
    print(f"  resets so far: {view.resets}")


def _limits(limits: LimitsView) -> str:
    parts = [f"tier {limits.tier}" if limits.tier else "no tier"]
    for name, limit in (("day", limits.day_microdollars), ("week", limits.week_microdollars)):
        if limit is not UNSET:
            parts.append(f"{name} {'without limit' if limit is None else dollars(limit)}")
    return ", ".join(parts)


def _used(window: WindowView) -> str:
    spent = dollars(0 if window.spent_microdollars is UNSET else window.spent_microdollars)
    if window.limit_microdollars in (None, UNSET):
        return f"{spent}, no limit"
    reset = f", resets {_utc(window.resets_at)}" if window.resets_at is not None else ""
    return f"{spent} of {dollars(window.limit_microdollars or 0)} ({window.percent:.1f} %{reset})"


def _utc(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
