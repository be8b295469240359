"""Reservations of money for model calls, what was spent, and the limits of owners, as rows. A trigger of the ledger
settles reservations."""

import sqlite3

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
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Unit


def admit_unit(db: sqlite3.Connection, unit: Unit, limits: SpendLimits, now: int) -> Granted | OverBudget | None:
    """Decide on the call that the unit leads to; None: it leads to none."""
    ask = unit.reserves
    if ask is None:
        return None
    owner, session = unit.key.owner, unit.key.session
    own = budget(db, owner)
    if limits.caps(own.at(now)).are_none and not ask.has_caps:
        return Granted(0)
    return admit(
        ask,
        own,
        limits,
        charged=charged(db, owner, now, session=session, ask=ask),
        reserved=reserved(db, owner),
        settles=unit.ledger,
        session=session,
        now=now,
    )


def reserve(db: sqlite3.Connection, unit: Unit, granted: Granted, now: int) -> None:
    ask = unit.reserves
    if ask is None or not granted.amount:
        return
    key = (unit.key.owner, unit.key.session, ask.message_id, ask.attempt)
    db.execute(SQL["reserve"], (*key, day_of(now), ask.root, ask.turn_id, ask.model, granted.amount, unit.fence))


def charged(db: sqlite3.Connection, owner: Owner, now: int, *, session: str = "", ask: Ask | None = None) -> Spent:
    """What was charged in the windows of this time and, for a call, in its other scopes that have a limit."""
    day = day_of(now)
    monday = first_day(week_of(day))
    return Spent(
        day=_sum(db, "charged_in_days", owner, day, day),
        week=_sum(db, "charged_in_days", owner, monday, monday + 6),
        session=_sum(db, "charged_to_session", owner, session) if ask and ask.session_cap is not None else 0,
        turn=_sum(db, "charged_to_turn", owner, session, ask.turn_id) if ask and ask.turn_cap is not None else 0,
        tree=_sum(db, "charged_to_tree", owner, ask.root) if ask and ask.tree_cap is not None else 0,
    )


def _sum(db: sqlite3.Connection, name: str, *of: object) -> int:
    (found,) = db.execute(SQL[name], of).fetchone()
    return int(found)


def reserved(db: sqlite3.Connection, owner: Owner) -> tuple[Reservation, ...]:
    return tuple(
        Reservation(
            owner=owner,
            session=SessionId(session),
            message_id=MessageId(message_id),
            attempt=attempt,
            day=day,
            root=SessionId(root),
            turn_id=None if turn_id is None else TurnId(turn_id),
            amount=amount,
        )
        for session, message_id, attempt, day, root, turn_id, amount in db.execute(SQL["reserved"], (owner,))
    )


def settle_left(db: sqlite3.Connection, now: int, limit: int) -> tuple[int, str | None]:
    """Charge the attempts whose process died, or that nobody holds any more, what was reserved for them."""
    left = db.execute(SQL["reservations_left"], (limit,)).fetchall()
    for *key, model in left:
        db.execute(SQL["add_ledger"], (*key, model, None, None, None, None, None, now, 0))
        db.execute(SQL["drop_reservation"], key)
    return len(left), "reservations" if left else None


def has_nothing_left(db: sqlite3.Connection) -> tuple[bool, int]:
    return db.execute(SQL["reservations_left"], (1,)).fetchone() is None, 0


def budget_now(db: sqlite3.Connection, owner: Owner, now: int) -> BudgetNow:
    spent = add_windows(charged(db, owner, now), reserved(db, owner), now)
    return BudgetNow(budget=budget(db, owner), spent=spent, time=now)


def edit(db: sqlite3.Connection, owner: Owner, edit: EditBudget, now: int) -> tuple[bool, str | None]:
    edited = edit(budget_now(db, owner, now))
    if edited is None:
        return False, None
    db.execute(SQL["set_budget"], (owner, encode_budget(edited)))
    return True, "budget"


def budget(db: sqlite3.Connection, owner: Owner) -> OwnerBudget:
    row = db.execute(SQL["budget"], (owner,)).fetchone()
    return decode_budget(None if row is None else row[0])


def budgets(db: sqlite3.Connection) -> dict[Owner, OwnerBudget]:
    return {Owner(owner): decode_budget(content) for owner, content in db.execute(SQL["budgets"])}


def spending(
    db: sqlite3.Connection, owner: Owner | None, first: int, last: int, session: SessionId | None
) -> tuple[Spending, ...]:
    return tuple(Spending(*row) for row in db.execute(SQL["spending"], (owner, first, last, session)))


def spending_by(
    db: sqlite3.Connection,
    group: SpendingGroup,
    owner: Owner | None,
    days: tuple[int, int],
    session: SessionId | None,
    limit: int,
) -> tuple[Spending, ...]:
    return tuple(Spending(*row) for row in db.execute(SQL["spending_by"], (owner, *days, session, group, limit)))
