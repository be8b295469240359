"""The rules of budgets: how much is used, planned changes, resets, and the changes of a billing system."""

import pytest

from holdfast.store.budget import (
    BILLED_MS,
    DAY_MS,
    MAX_BILLED,
    NOTHING_SET,
    BudgetNow,
    Caps,
    Change,
    OwnerBudget,
    OwnerLimits,
    SpendLimits,
    Spent,
    bill,
    gauges,
    plan,
    reset,
    windows,
)

NOW = 20_000 * DAY_MS + 5
PRO = OwnerLimits(tier="pro")
FREE = OwnerLimits(tier="free")


def used(spent: int, cap: int | None) -> tuple[float | None, bool, bool]:
    found = BudgetNow(budget=NOTHING_SET, spent=Spent(day=spent), time=NOW)
    day, _ = gauges(found, SpendLimits(day=cap))
    return day.percent, day.is_blocked, day.resets_at is not None


@pytest.mark.parametrize(
    ("spent", "cap", "shown"),
    [
        (0, None, (None, False, False)),
        (5, None, (None, False, False)),
        (0, 0, (100.0, True, False)),
        (0, 3, (0.0, False, True)),
        (1, 3, (33.3, False, True)),
        (2, 3, (66.6, False, True)),
        (999_999, 1_000_000, (99.9, False, True)),
        (10**15 - 1, 10**15, (99.9, False, True)),
        (3, 3, (100.0, True, True)),
        (4, 3, (100.0, True, True)),
    ],
)
def test_a_percentage_has_one_decimal_and_is_100_only_at_the_limit_or_over_it(
    spent: int, cap: int | None, shown: tuple[float | None, bool, bool]
) -> None:
    assert used(spent, cap) == shown


def test_the_windows_end_at_midnight_and_on_monday() -> None:
    day, week = gauges(BudgetNow(budget=NOTHING_SET, spent=Spent(), time=NOW), SpendLimits(day=1, week=1))
    assert day.ends_at == 20_001 * DAY_MS
    assert week.ends_at == 20_003 * DAY_MS, "day 20,000 was a Friday"


def test_what_resets_gave_back_does_not_count() -> None:
    day_name, week_name = windows(NOW)
    budget = OwnerBudget(forgiven={day_name: 7, week_name: 2})
    day, week = gauges(BudgetNow(budget=budget, spent=Spent(day=9, week=9), time=NOW), SpendLimits(day=10, week=10))
    assert (day.spent, week.spent) == (2, 7)


def test_a_change_back_cancels_what_is_planned() -> None:
    planned = plan(OwnerBudget(now=PRO), Change(at=NOW + 10, to=FREE), NOW)
    assert planned.at(NOW) == PRO
    assert planned.at(NOW + 10) == FREE
    assert plan(planned, Change(at=NOW + 10, to=PRO), NOW).planned == ()
    assert plan(planned, Change(at=NOW + 5, to=PRO), NOW).planned == (), "back before it would have begun"
    assert plan(planned, Change(at=0, to=PRO), NOW).planned == ()
    after = plan(planned, Change(at=NOW + 20, to=PRO), NOW)
    assert [after.at(NOW + late).tier for late in (0, 10, 20)] == ["pro", "free", "pro"]


def test_a_reset_gives_the_day_back_and_the_week_a_day_s_allowance() -> None:
    caps = Caps(day=10, week=50)
    assert reset(NOTHING_SET, caps, Spent(day=9, week=40), NOW) is None
    assert reset(NOTHING_SET, Caps(week=5), Spent(day=9, week=40), NOW) is None
    after = reset(NOTHING_SET, caps, Spent(day=12, week=40), NOW)
    assert after is not None
    assert after.resets == 1
    assert tuple(after.forgiven[name] for name in windows(NOW)) == (12, 10)
    assert reset(after, caps, Spent(day=12, week=40), NOW) is None, "it is no longer over the limit"


def test_a_billing_system_s_changes_come_in_the_order_of_their_versions() -> None:
    def billed(budget: OwnerBudget, version: int, message_id: str, now: int = NOW) -> OwnerBudget | None:
        return bill(budget, Change(at=0, to=PRO), message_id=message_id, version=version, now=now)

    first = billed(NOTHING_SET, 5, "a")
    assert first is not None
    assert (first.version, first.now) == (5, PRO)
    assert billed(first, 5, "b") is None
    assert billed(first, 4, "c") is None
    assert billed(first, 6, "a") is None, "an id counts once"
    assert billed(first, 6, "a", NOW + BILLED_MS) is not None, "its signature would have run out long ago"
    many = first
    for number in range(6, 6 + 2 * MAX_BILLED):
        after = billed(many, number, f"m{number}")
        assert after is not None
        many = after
    assert len(many.billed) == MAX_BILLED
    assert plan(first, Change(at=0, to=FREE), NOW).version == 5, "an admin's change leaves the order as it is"
