"""Reservations of money for model calls, what was spent, and the limits of owners."""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.store.budget import (
    NOTHING_SET,
    BudgetNow,
    EditBudget,
    Granted,
    OverBudget,
    Reservation,
    Spending,
    SpendingGroup,
    SpendLimits,
    Spent,
    add_windows,
    admit,
    charge,
    day_of,
    reservation_of,
    week_of,
)
from holdfast.store.store import LedgerEntry, Unit
from proof.simulation.memory.tables import Database, ReservationRecord


def wall_ms(db: Database) -> int:
    return int(db.now() * 1000)


def admit_unit(db: Database, unit: Unit, limits: SpendLimits) -> Granted | OverBudget | None:
    ask, owner, now = unit.reserves, unit.key.owner, wall_ms(db)
    if ask is None:
        return None
    own = db.budgets.get(owner, NOTHING_SET)
    if limits.caps(own.at(now)).are_none and not ask.has_caps:
        return Granted(0)
    rows = _spending(db, owner=owner)
    today, week = day_of(now), week_of(day_of(now))
    charged = Spent(
        day=sum(row.charged for row in rows if row.day == today),
        week=sum(row.charged for row in rows if week_of(row.day) == week),
        session=sum(row.charged for row in rows if row.session == unit.key.session),
        turn=db.charged_to_turns.get((unit.key, ask.turn_id), 0),
        tree=sum(row.charged for row in rows if db.roots.get((owner, row.session), row.session) == ask.root),
    )
    return admit(
        ask,
        own,
        limits,
        charged=charged,
        reserved=reserved(db, owner),
        settles=unit.ledger,
        session=unit.key.session,
        now=now,
    )


def reserve(db: Database, unit: Unit, granted: Granted | None) -> None:
    ask = unit.reserves
    if ask is None or granted is None or not granted.amount:
        return
    row = reservation_of(unit.key, ask, granted, wall_ms(db))
    place = (unit.key, ask.message_id, ask.attempt)
    before = db.reservations.get(place)
    if before is not None:
        row = replace(before.row, amount=max(before.row.amount, row.amount))
    db.reservations[place] = ReservationRecord(row, ask.model, unit.fence)


def settle(db: Database, key: Key, entry: LedgerEntry) -> None:
    """Add an entry to the ledger, once, and settle the reservation of its attempt."""
    place = (key, entry.message_id, entry.attempt)
    if place in db.ledger:
        return
    db.ledger[place] = entry
    kept = db.reservations.pop(place, None)
    row = kept.row if kept is not None else None
    day = row.day if row is not None else day_of(wall_ms(db))
    charged = charge(entry.cost_microdollars, row.amount if row is not None else None, is_refused=entry.refused)
    found = db.spending.get((key, day, entry.model)) or Spending(key.owner, day, key.session, entry.model)
    db.spending[key, day, entry.model] = replace(
        found,
        calls=found.calls + 1,
        unknown=found.unknown + (entry.cost_microdollars is None),
        input_tokens=found.input_tokens + (entry.input_tokens or 0),
        output_tokens=found.output_tokens + (entry.output_tokens or 0),
        cache_read_tokens=found.cache_read_tokens + (entry.cache_read_tokens or 0),
        cache_write_tokens=found.cache_write_tokens + (entry.cache_write_tokens or 0),
        cost=found.cost + (entry.cost_microdollars or 0),
        charged=found.charged + charged,
    )
    if row is not None:
        db.roots[key.owner, key.session] = row.root
        turn = (key, row.turn_id)
        db.charged_to_turns[turn] = db.charged_to_turns.get(turn, 0) + charged


def settle_left(db: Database, limit: int, now: int) -> tuple[int, str | None]:
    left = [place for place, record in sorted(db.reservations.items()) if not _is_held(db, place[0], record)][:limit]
    for place in left:
        key, message_id, attempt = place
        settle(db, key, _unknown(message_id, attempt, db.reservations[place].model, now))
        db.reservations.pop(place, None)
    return len(left), "reservations" if left else None


def _is_held(db: Database, key: Key, record: ReservationRecord) -> bool:
    session = db.live(key)
    return session is not None and session.holder is not None and session.fence == record.fence


def _unknown(message_id: MessageId, attempt: int, model: str, now: int) -> LedgerEntry:
    return LedgerEntry(
        message_id=message_id,
        attempt=attempt,
        model=model,
        input_tokens=None,
        output_tokens=None,
        cache_read_tokens=None,
        cost_microdollars=None,
        time=now,
    )


def reserved(db: Database, owner: Owner) -> tuple[Reservation, ...]:
    return tuple(record.row for record in db.reservations.values() if record.row.owner == owner)


def budget_now(db: Database, owner: Owner) -> BudgetNow:
    now = wall_ms(db)
    rows, today, week = _spending(db, owner=owner), day_of(now), week_of(day_of(now))
    charged = Spent(
        day=sum(row.charged for row in rows if row.day == today),
        week=sum(row.charged for row in rows if week_of(row.day) == week),
    )
    spent = add_windows(charged, reserved(db, owner), now)
    return BudgetNow(budget=db.budgets.get(owner, NOTHING_SET), spent=spent, time=now)


def edit(db: Database, owner: Owner, edit: EditBudget) -> tuple[bool, str | None]:
    edited = edit(budget_now(db, owner))
    if edited is None:
        return False, None
    db.budgets[owner] = edited
    return True, "budget"


def spending(
    db: Database, first: int, last: int, owner: Owner | None, session: SessionId | None
) -> tuple[Spending, ...]:
    found = (row for row in _spending(db, owner=owner) if first <= row.day <= last and session in (None, row.session))
    return tuple(sorted(found, key=lambda row: (row.owner, row.day, row.session, row.model)))


def spending_by(
    db: Database,
    group: SpendingGroup,
    days: tuple[int, int],
    owner: Owner | None,
    session: SessionId | None,
    limit: int,
) -> tuple[Spending, ...]:
    groups: dict[tuple[str | int, ...], dict[str, Spending]] = {}
    for row in spending(db, *days, owner, session):
        place = replace(
            row,
            owner=row.owner if group in ("owner", "session") else Owner(""),
            day=row.day if group == "day" else 0,
            session=row.session if group == "session" else SessionId(""),
        )
        models = groups.setdefault((place.owner, place.day, place.session, row.model if group == "model" else ""), {})
        models[row.model] = _plus(models[row.model], place) if row.model in models else place
    most = sorted(groups, key=lambda key: (-sum(row.charged for row in groups[key].values()), key))[:limit]
    return tuple(groups[key][model] for key in most for model in sorted(groups[key]))


def _plus(one: Spending, other: Spending) -> Spending:
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in Spending.__struct_fields__[4:]})


def _spending(db: Database, *, owner: Owner | None) -> list[Spending]:
    rows: Iterable[Spending] = db.spending.values()
    return [row for row in rows if owner in (None, row.owner)]
