"""Budgets: reservations for model calls, made and settled by units; limits of owners; what was spent."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.store.budget import (
    Ask,
    BudgetNow,
    Change,
    Granted,
    OverBudget,
    OwnerBudget,
    OwnerLimits,
    Spending,
    SpendingGroup,
    SpendLimits,
    day_of,
    plan,
)
from holdfast.store.clock import SystemClock
from holdfast.store.store import OVER_BUDGET, Committed, FenceMissed, Lease, LedgerEntry, Rejected, Store, Unit
from holdfast.store.turn_limits import TurnLimits
from holdfast.testing.store_conformance.words import KEY, MANY, TURN, AgeSpending, OpenStore, running, said
from holdfast.testing.store_conformance.words import ledger as entry_of

DOLLAR = 1_000_000
LIMITS = TurnLimits(spend=SpendLimits(day=10 * DOLLAR, week=30 * DOLLAR, tiers={"pro": 2.0}))
BOB = Owner("bob")
EVER = (-(1 << 30), 1 << 30)
"""All days."""


def ask(message: str = "answer", *, attempt: int = 1, dollars: int = 3, tokens: int = 1_000) -> Ask:
    """A call of which an answer of that many tokens costs that many dollars; its input is free."""
    return Ask(
        message_id=MessageId(message),
        attempt=attempt,
        turn_id=TURN,
        model="m",
        root=KEY.session,
        input_cost=0,
        output_rate=dollars * DOLLAR * 1_000_000 // tokens,
        most_tokens=tokens,
    )


def ledger(message: str, *, cost: int | None) -> LedgerEntry:
    return replace(entry_of(message, cost=cost), time=SystemClock().now_ms())


def key_of(name: str, owner: Owner = KEY.owner) -> Key:
    return Key(owner, SessionId(name))


async def reserve(store: Store, lease: Lease, asked: Ask, *settles: LedgerEntry) -> Granted | OverBudget:
    unit = Unit(key=lease.key, fence=lease.fence, reserves=asked, ledger=settles)
    outcome = await store.commit(unit)
    if isinstance(outcome, Committed):
        assert outcome.granted is not None
        return outcome.granted
    assert isinstance(outcome, Rejected)
    assert outcome.reason == OVER_BUDGET
    assert outcome.over is not None
    return outcome.over


async def settle(store: Store, lease: Lease, *entries: LedgerEntry) -> None:
    assert isinstance(await store.commit(Unit(key=lease.key, fence=lease.fence, ledger=entries)), Committed)


async def spent_today(store: Store, owner: Owner = KEY.owner) -> int:
    return (await store.budget(owner)).spent.day


async def charges(store: Store, owner: Owner | None = None) -> list[tuple[str, int]]:
    return [(row.session, row.charged) for row in await store.spending(*EVER, owner=owner)]


class BudgetConformance:
    @pytest.fixture
    async def priced(self, open_store: OpenStore) -> Store:
        return await open_store(limits=LIMITS)

    async def test_without_a_limit_nothing_is_reserved(self, store: Store) -> None:
        lease = await running(store)
        assert await reserve(store, lease, ask(dollars=1_000)) == Granted(0)
        assert await spent_today(store) == 0
        await settle(store, lease, ledger("answer", cost=7))
        assert await spent_today(store) == 7
        assert await charges(store) == [(KEY.session, 7)]

    async def test_what_is_reserved_counts_as_spent(self, priced: Store) -> None:
        lease = await running(priced)
        assert await reserve(priced, lease, ask("a")) == Granted(3 * DOLLAR, 1_000)
        assert await spent_today(priced) == 3 * DOLLAR
        other = await running(priced, key_of("other"))
        assert await reserve(priced, other, ask("b")) == Granted(3 * DOLLAR, 1_000)
        assert await reserve(priced, lease, ask("c")) == Granted(3 * DOLLAR, 1_000)
        found = await reserve(priced, other, ask("d"))
        assert found == Granted(DOLLAR - DOLLAR % 3_000, 333), "the answer is as long as what is left buys"
        refused = await reserve(priced, other, ask("e"))
        assert isinstance(refused, OverBudget)
        assert refused.scope == "day"
        assert refused.resets_at is not None
        assert refused.resets_at % 86_400_000 == 0

    async def test_a_refused_unit_writes_nothing(self, priced: Store) -> None:
        lease = await running(priced)
        await reserve(priced, lease, ask("a", dollars=10))
        head = (await priced.row(KEY)).head  # type: ignore[union-attr]
        unit = Unit(
            key=KEY, fence=lease.fence, events=(said("more"),), ledger=(ledger("x", cost=1),), reserves=ask("b")
        )
        assert isinstance(await priced.commit(unit), Rejected)
        row = await priced.row(KEY)
        assert row is not None
        assert row.head == head
        assert await priced.ledger(KEY.owner) == ()

    async def test_an_entry_settles_its_reservation(self, priced: Store) -> None:
        lease = await running(priced)
        await reserve(priced, lease, ask("known"))
        await settle(priced, lease, ledger("known", cost=5))
        assert await spent_today(priced) == 5
        await settle(priced, lease, ledger("known", cost=5), ledger("known", cost=900))
        assert await spent_today(priced) == 5, "the same attempt is charged once"
        await reserve(priced, lease, ask("unknown"))
        await settle(priced, lease, ledger("unknown", cost=None))
        assert await spent_today(priced) == 5 + 3 * DOLLAR, "an unknown cost is charged as it was estimated"
        await reserve(priced, lease, ask("refused"))
        await settle(priced, lease, replace(ledger("refused", cost=None), refused=True))
        assert await spent_today(priced) == 5 + 3 * DOLLAR, "a refusal costs nothing"
        await reserve(priced, lease, ask("dear"))
        await settle(priced, lease, ledger("dear", cost=20 * DOLLAR))
        assert await spent_today(priced) == 5 + 23 * DOLLAR, "an overrun is recorded in full"
        (row,) = await priced.spending(*EVER)
        assert (row.calls, row.unknown, row.cost, row.charged) == (4, 2, 5 + 20 * DOLLAR, 5 + 23 * DOLLAR)
        assert row.day == day_of((await priced.budget(KEY.owner)).time)

    async def test_a_unit_may_settle_one_attempt_and_reserve_the_next(self, priced: Store) -> None:
        lease = await running(priced)
        await reserve(priced, lease, ask("a", dollars=10))
        granted = await reserve(priced, lease, ask("b", dollars=9), ledger("a", cost=DOLLAR))
        assert granted == Granted(9 * DOLLAR, 1_000)
        assert await spent_today(priced) == 10 * DOLLAR

    async def test_a_call_that_asks_again_is_not_counted_twice(self, priced: Store) -> None:
        lease = await running(priced)
        assert await reserve(priced, lease, ask("a", dollars=8)) == Granted(8 * DOLLAR, 1_000)
        assert await reserve(priced, lease, ask("a", dollars=9)) == Granted(9 * DOLLAR, 1_000)
        assert await spent_today(priced) == 9 * DOLLAR

    async def test_owners_have_budgets_of_their_own(self, priced: Store) -> None:
        ann, bob = await running(priced), await running(priced, key_of("s", BOB))
        assert isinstance(await reserve(priced, ann, ask("a", dollars=10)), Granted)
        assert await reserve(priced, bob, ask("a", dollars=10)) == Granted(10 * DOLLAR, 1_000)
        await settle(priced, bob, ledger("a", cost=4))
        assert await spent_today(priced) == 10 * DOLLAR
        assert await spent_today(priced, BOB) == 4
        assert await charges(priced, BOB) == [("s", 4)]

    async def test_processes_that_reserve_at_once_share_one_budget(self, open_store: OpenStore) -> None:
        first, second = await open_store(limits=LIMITS), await open_store(node="there", limits=LIMITS)
        leases = []
        for number in range(12):
            store = (first, second)[number % 2]
            leases.append((store, await running(store, key_of(f"s{number}"))))
        found = await asyncio.gather(*(reserve(store, lease, ask("a")) for store, lease in leases))
        granted = [each for each in found if isinstance(each, Granted)]
        assert sum(each.amount for each in granted) <= 10 * DOLLAR
        assert [each.tokens for each in granted].count(1_000) == 3
        assert await spent_today(first) == sum(each.amount for each in granted)

    async def test_the_week_limits_what_the_day_allows(self, open_store: OpenStore, age_spending: AgeSpending) -> None:
        store = await open_store(limits=TurnLimits(spend=SpendLimits(day=10 * DOLLAR, week=10 * DOLLAR)))
        lease = await running(store)
        await reserve(store, lease, ask("a"))
        await settle(store, lease, ledger("a", cost=9 * DOLLAR))
        now = await store.budget(KEY.owner)
        assert (now.spent.day, now.spent.week) == (9 * DOLLAR, 9 * DOLLAR)
        await age_spending(7)
        now = await store.budget(KEY.owner)
        assert (now.spent.day, now.spent.week) == (0, 0)
        assert await reserve(store, lease, ask("b", dollars=10)) == Granted(10 * DOLLAR, 1_000)

    async def test_an_attempt_belongs_to_the_day_of_its_reservation(
        self, priced: Store, age_spending: AgeSpending
    ) -> None:
        lease = await running(priced)
        await reserve(priced, lease, ask("a"))
        await age_spending(1)
        assert await spent_today(priced) == 0
        await settle(priced, lease, ledger("a", cost=2 * DOLLAR))
        assert await spent_today(priced) == 0
        (row,) = await priced.spending(*EVER)
        assert row.day == day_of((await priced.budget(KEY.owner)).time) - 1

    async def test_turns_sessions_and_trees_have_limits_of_their_own(self, store: Store) -> None:
        lease = await running(store)
        for scope in ("turn_cap", "session_cap", "tree_cap"):
            asked = with_cap(ask(f"{scope}-1", dollars=1), scope, 2 * DOLLAR + await _total(store))
            assert isinstance(await reserve(store, lease, asked), Granted)
            await settle(store, lease, ledger(f"{scope}-1", cost=DOLLAR + DOLLAR // 2))
            again = with_cap(ask(f"{scope}-2", dollars=1), scope, await _total(store))
            found = await reserve(store, lease, again)
            assert found == OverBudget(scope=scope.removesuffix("_cap"))  # type: ignore[arg-type]

    async def test_a_model_without_a_price_is_not_called_where_a_limit_holds(self, priced: Store) -> None:
        lease = await running(priced)
        unpriced = replace(ask("a"), is_priced=False)
        assert await reserve(priced, lease, unpriced) == OverBudget(scope="price")

    async def test_limits_of_an_owner_are_set_now_or_later(self, priced: Store) -> None:
        lease = await running(priced)
        asked = ask("a", dollars=15)
        assert await reserve(priced, lease, asked) == Granted(10 * DOLLAR - 10 * DOLLAR % 15_000, 666)
        await settle(priced, lease, ledger("a", cost=0))

        def to(tier: OwnerLimits, *, after: int = 0):  # type: ignore[no-untyped-def]
            return lambda seen: plan(seen.budget, Change(at=seen.time + after, to=tier), seen.time)

        assert await priced.edit_budget(KEY.owner, to(OwnerLimits(tier="pro")))
        assert await reserve(priced, lease, ask("b", dollars=15)) == Granted(15 * DOLLAR, 1_000)
        await settle(priced, lease, ledger("b", cost=0))
        assert await priced.edit_budget(KEY.owner, to(OwnerLimits(day=0)))
        assert await reserve(priced, lease, ask("c")) == OverBudget(scope="day")
        assert await priced.edit_budget(KEY.owner, to(OwnerLimits(day=None, week=None)))
        assert await reserve(priced, lease, ask("d", dollars=1_000)) == Granted(0)
        assert await priced.edit_budget(KEY.owner, to(OwnerLimits(tier="pro"), after=3_600_000))
        budgets = await priced.budgets()
        assert [change.to.tier for change in budgets[KEY.owner].planned] == ["pro"]
        assert set(budgets) == {KEY.owner}

    async def test_of_edits_at_once_each_sees_the_one_before(self, open_store: OpenStore) -> None:
        first, second = await open_store(), await open_store()

        def count(seen: BudgetNow) -> OwnerBudget:
            return replace(seen.budget, resets=seen.budget.resets + 1)

        assert all(await asyncio.gather(*(store.edit_budget(BOB, count) for store in (first, second) * 5)))
        assert (await first.budget(BOB)).budget.resets == 10
        assert not await second.edit_budget(BOB, lambda seen: None)

    async def test_a_reservation_of_a_dead_holder_is_charged_in_full(self, open_store: OpenStore) -> None:
        first, second = await open_store(limits=LIMITS), await open_store(limits=LIMITS)
        lease = await running(first)
        await reserve(first, lease, ask("a"))
        assert await second.settle_left() == 0, "its holder lives"
        await first.close()
        (claim,) = await second.claim(limit=MANY)
        assert claim.lease.key == KEY
        assert await second.settle_left() == 1
        assert await second.settle_left() == 0
        assert await spent_today(second) == 3 * DOLLAR
        (entry,) = await second.ledger(KEY.owner)
        assert (entry.message_id, entry.attempt, entry.cost_microdollars) == ("a", 1, None)

    async def test_a_reservation_ends_with_its_session(self, priced: Store) -> None:
        lease = await running(priced)
        await reserve(priced, lease, ask("a"))
        await priced.delete(KEY)
        assert await priced.settle_left() == 1
        assert await spent_today(priced) == 3 * DOLLAR
        (row,) = await priced.spending(*EVER)
        assert (row.session, row.charged) == (KEY.session, 3 * DOLLAR)

    async def test_a_lost_lease_reserves_nothing(self, priced: Store) -> None:
        lease = await running(priced)
        stale = Unit(key=KEY, fence=type(lease.fence)(lease.fence - 1), reserves=ask("a"))
        assert isinstance(await priced.commit(stale), FenceMissed)
        assert await spent_today(priced) == 0

    async def test_spending_is_told_by_day_session_and_model(self, priced: Store, age_spending: AgeSpending) -> None:
        lease = await running(priced)
        await settle(priced, lease, ledger("a", cost=1), replace(ledger("b", cost=2), model="n"))
        await age_spending(1)
        await settle(priced, lease, ledger("c", cost=4))
        today = day_of((await priced.budget(KEY.owner)).time)
        rows = await priced.spending(today - 1, today, owner=KEY.owner, session=KEY.session)
        assert [(row.day - today, row.model, row.calls, row.cost) for row in rows] == [
            (-1, "m", 1, 1),
            (-1, "n", 1, 2),
            (0, "m", 1, 4),
        ]
        assert rows[0] == Spending(KEY.owner, today - 1, KEY.session, "m", 1, 0, 1, 0, 0, 0, 1, 1)
        assert await priced.spending(today, today) == rows[2:]
        assert await priced.spending(0, today, owner=BOB) == ()

    async def test_spending_is_summed_up_by_owner_session_model_or_day(
        self, priced: Store, age_spending: AgeSpending
    ) -> None:
        mine, other = await running(priced), await running(priced, key_of("other"))
        his = await running(priced, key_of("s", BOB))
        await settle(priced, mine, ledger("a", cost=1), replace(ledger("b", cost=2), model="n"))
        await age_spending(1)
        await settle(priced, other, ledger("c", cost=4), replace(ledger("d", cost=16), model=""))
        await settle(priced, his, ledger("e", cost=8))
        today = day_of((await priced.budget(KEY.owner)).time)
        days = (today - 1, today)

        async def sums(group: SpendingGroup, *, limit: int = MANY, **only: Any) -> list[tuple[str, int, str, str, int]]:
            found = await priced.spending_by(group, *days, limit=limit, **only)
            first = today - 2 if group == "day" else 0
            return [(row.owner, row.day - first, row.session, row.model, row.charged) for row in found]

        ann = KEY.owner
        assert await sums("owner") == [
            (ann, 0, "", "", 16),
            (ann, 0, "", "m", 5),
            (ann, 0, "", "n", 2),
            (BOB, 0, "", "m", 8),
        ]
        assert await sums("model") == [("", 0, "", "", 16), ("", 0, "", "m", 13), ("", 0, "", "n", 2)]
        assert await sums("day") == [
            *(("", 2, "", "", 16), ("", 2, "", "m", 12)),
            *(("", 1, "", "m", 1), ("", 1, "", "n", 2)),
        ]
        assert await sums("session", limit=2) == [
            *((ann, 0, "other", "", 16), (ann, 0, "other", "m", 4)),
            (BOB, 0, "s", "m", 8),
        ]
        assert await sums("session", owner=ann, session=KEY.session) == [
            *((ann, 0, KEY.session, "m", 1), (ann, 0, KEY.session, "n", 2)),
        ]
        assert [(row.calls, row.input_tokens) for row in await priced.spending_by("model", *days)] == [
            (1, 1),
            (3, 3),
            (1, 1),
        ]


async def _total(store: Store) -> int:
    return sum(row.charged for row in await store.spending(*EVER))


def with_cap(asked: Ask, name: str, value: int) -> Ask:
    return replace(asked, **{name: value})
