"""Reservations of money for model calls, what was spent, and the limits of owners, as rows. A trigger of the ledger
settles reservations."""

from collections.abc import Collection, Sequence

from holdfast.events.ids import MessageId, Owner, SessionId, TurnId
from holdfast.store.budget import (
    Ask,
    BudgetNow,
    EditBudget,
    Granted,
    OverBudget,
    OwnerBudget,
    Reservation,
    Spending,
    SpendingGroup,
    SpendLimits,
    Spent,
    add_windows,
    admit,
    day_of,
    decode_budget,
    encode_budget,
    first_day,
    week_of,
)
from holdfast.store.postgres.connections import Link
from holdfast.store.store import Unit


async def lock(db: Link, owners: Collection[str]) -> frozenset[str]:
    """Let no other transaction reserve money of these owners until this one ends, without waiting for any: returns the
    owners for whom that succeeded."""
    return frozenset(owner for (owner,) in await db.rows("try_lock_budgets", sorted(owners)))


async def now_ms(db: Link) -> int:
    ((now,),) = await db.rows("wall_ms")
    return int(now)


async def admit_unit(
    db: Link, unit: Unit, limits: SpendLimits, granted: Sequence[Reservation], now: int
) -> Granted | OverBudget:
    """Decide on the call that a unit leads to, while the owner's budget is locked. `granted` is what other units of the
    same transaction are about to reserve."""
    ask, owner, session = unit.reserves, unit.key.owner, unit.key.session
    assert ask is not None, "only units that lead to a call are decided on"
    own = await _budget(db, owner)
    if limits.caps(own.at(now)).are_none and not ask.has_caps:
        return Granted(0)
    charged, kept = await _money(db, owner, now, session=session, ask=ask)
    return admit(
        ask,
        own,
        limits,
        charged=charged,
        reserved=(*kept, *(each for each in granted if each.owner == owner)),
        settles=unit.ledger,
        session=session,
        now=now,
    )


async def reserve(db: Link, unit: Unit, granted: Granted | None, now: int) -> None:
    if granted is None or unit.reserves is None or not granted.amount:
        return
    key = (unit.key.owner, unit.key.session, unit.reserves.message_id, unit.reserves.attempt)
    about = (unit.reserves.root, unit.reserves.turn_id, unit.reserves.model, granted.amount, unit.fence)
    await db.run("reserve", *key, day_of(now), *about)


async def _money(
    db: Link, owner: Owner, now: int, *, session: str | None = None, ask: Ask | None = None
) -> tuple[Spent, tuple[Reservation, ...]]:
    """What was charged in the windows of this time and, for a call, in its other scopes that have a limit; and all that
    is reserved."""
    day = day_of(now)
    monday = first_day(week_of(day))
    rows = await db.rows(
        "money",
        owner,
        day,
        monday,
        monday + 6,
        session if ask is not None and (ask.session_cap is not None or ask.turn_cap is not None) else None,
        ask.turn_id if ask is not None and ask.turn_cap is not None else None,
        ask.root if ask is not None and ask.tree_cap is not None else None,
    )
    day_sum, week_sum, session_sum, turn_sum, tree_sum = rows[0][:5]
    charged = Spent(day=day_sum, week=week_sum, session=session_sum, turn=turn_sum, tree=tree_sum)
    return charged, tuple(_reserved(owner, *row[5:]) for row in rows if row[5] is not None)


async def reserved(db: Link, owner: Owner) -> tuple[Reservation, ...]:
    _, found = await _money(db, owner, 0)
    return found


def _reserved(
    owner: Owner, session: str, message_id: str, attempt: int, day: int, root: str, turn_id: str | None, amount: int
) -> Reservation:
    return Reservation(
        owner=owner,
        session=SessionId(session),
        message_id=MessageId(message_id),
        attempt=attempt,
        day=day,
        root=SessionId(root),
        turn_id=None if turn_id is None else TurnId(turn_id),
        amount=amount,
    )


async def settle_left(db: Link, limit: int, now: int) -> tuple[int, str | None]:
    """Charge the attempts whose process died, or that nobody holds any more, what was reserved for them."""
    left = await db.rows("reservations_left", limit)
    for *key, model in left:
        await db.run("add_unknown", *key, model, now)
        await db.run("drop_reservation", *key)
    return len(left), "reservations" if left else None


async def budget_now(db: Link, owner: Owner) -> BudgetNow:
    now = await now_ms(db)
    spent = add_windows(*await _money(db, owner, now), now)
    return BudgetNow(budget=await _budget(db, owner), spent=spent, time=now)


async def edit(db: Link, owner: Owner, edit: EditBudget) -> tuple[bool, str | None]:
    await db.rows("lock_budget", owner)
    edited = edit(await budget_now(db, owner))
    if edited is None:
        return False, None
    await db.run("set_budget", owner, encode_budget(edited))
    return True, "budget"


async def _budget(db: Link, owner: Owner) -> OwnerBudget:
    rows = await db.rows("budget", owner)
    return decode_budget(rows[0][0] if rows else None)


async def budgets(db: Link) -> dict[Owner, OwnerBudget]:
    return {Owner(owner): decode_budget(content) for owner, content in await db.rows("budgets")}


async def spending(
    db: Link, owner: Owner | None, first: int, last: int, session: SessionId | None
) -> tuple[Spending, ...]:
    return tuple(Spending(*row) for row in await db.rows("spending", owner, first, last, session))


async def spending_by(
    db: Link, group: SpendingGroup, owner: Owner | None, days: tuple[int, int], session: SessionId | None, limit: int
) -> tuple[Spending, ...]:
    return tuple(Spending(*row) for row in await db.rows("spending_by", owner, *days, session, group, limit))
