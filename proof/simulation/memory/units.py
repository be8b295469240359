"""Units: checked whole, then written whole."""

from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.event import SHOWN, Event
from holdfast.events.ids import Position
from holdfast.store.budget import OverBudget
from holdfast.store.store import (
    HEAD_MOVED,
    OVER_BUDGET,
    Committed,
    FenceMissed,
    NewSession,
    Outcome,
    Promotion,
    Rejected,
    Segment,
    Unit,
    answer_key,
    answer_waits,
)
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from proof.simulation.memory import budgets, tasks, webhooks
from proof.simulation.memory.tables import Database, SessionRecord, Written, usage_of

_LATEST = 1 << 63


def stored(unit: Unit) -> Unit:
    """The unit as it reads back. A unit that cannot be stored fails here, alone and with its sender."""
    return replace(unit, events=tuple(map(_event, unit.events)), segments=tuple(map(_segment, unit.segments)))


def commit(
    db: Database, unit: Unit, *, process: str, now: int, limits: TurnLimits = NO_LIMITS
) -> tuple[Outcome, str | None]:
    """The outcome and, if a write took place, its description."""
    found = db.sessions.get(unit.key)
    refusal = _record_refusal(unit, found) if unit.fence is None else _refusal(unit, found, process)
    if refusal is not None:
        return refusal, None
    if found is None and limits.has_quota(unit.key.owner):
        size = sum(len(codec.encode(event.body)[2]) for event in unit.events)
        if code := limits.refuses_session(usage_of(db, unit.key.owner), size):
            return Rejected(code), None
    session = found or _create(db, unit, now)
    granted = budgets.admit_unit(db, unit, limits.spend)
    if isinstance(granted, OverBudget):
        return Rejected(OVER_BUDGET, granted), None
    _write(db, session, unit, process=process, now=now)
    budgets.reserve(db, unit, granted)
    return Committed(Position(len(session.events)), session.tail, granted), _detail(unit)


def _refusal(unit: Unit, session: SessionRecord | None, process: str) -> Outcome | None:
    if session is None or session.is_deleted or not holds(unit, session, process):
        return FenceMissed()
    if unit.creates is not None:
        return Rejected("exists")
    if moved := _head_refusal(unit, session):
        return moved
    waiting = {found.item.sequence for found in session.waiting()}
    for promotion in unit.promotes:
        if promotion.sequence not in waiting:
            return Rejected(f"inbox item {promotion.sequence} no longer waits")
    promoted = {promotion.sequence for promotion in unit.promotes}
    for request_id in unit.closes:
        found = session.inbox.get(answer_key(request_id))
        if found is not None and found.waits and found.item.sequence not in promoted:
            return Rejected(answer_waits(request_id))
    return None


def holds(unit: Unit, session: SessionRecord, process: str) -> bool:
    return session.holder == process and session.fence == unit.fence


def _record_refusal(unit: Unit, session: SessionRecord | None) -> Outcome | None:
    progress = unit.promotes or unit.opens or unit.closes or unit.segments or unit.makes_progress
    commands = unit.opens_tasks or unit.changes_tasks or unit.ends_commands
    if progress or commands or unit.drops_segments or unit.turn_id is not None:
        return Rejected("only records may be written without a lease")
    if unit.creates is not None:
        return None if session is None else Rejected("deleted" if session.is_deleted else "exists")
    if unit.status is not None or not all(codec.is_record(_type(event)) for event in unit.events):
        return Rejected("only records may be written without a lease")
    if session is None or session.is_deleted:
        return Rejected("session_not_found")
    return _head_refusal(unit, session)


def _head_refusal(unit: Unit, session: SessionRecord) -> Rejected | None:
    is_as_supposed = unit.supposes_head is None or unit.supposes_head == len(session.events)
    return None if is_as_supposed else Rejected(HEAD_MOVED)


def _create(db: Database, unit: Unit, now: int) -> SessionRecord:
    new = unit.creates
    assert isinstance(new, NewSession)
    made = SessionRecord(unit.key, new, status=unit.status or "idle", title=clean(unit.title or ""), now=now)
    db.sessions[unit.key] = made
    return made


def _write(db: Database, session: SessionRecord, unit: Unit, *, process: str, now: int) -> None:
    session.updated_at = now
    first = len(session.events) + 1
    session.events += [event.at(Position(first + index)) for index, event in enumerate(unit.events)]
    session.written += [Written(unit.fence, process, len(codec.encode(event.body)[2])) for event in unit.events]
    for event in session.events[first - 1 :] if unit.creates is None else ():
        session.shown = event.position if isinstance(event.body, SHOWN) else session.shown
    if unit.creates is None:
        webhooks.report(db, unit.key, session.events[first - 1 :])
    _describe(session, unit)
    if unit.drops_segments:
        session.segments = []
    session.segments += unit.segments
    for told in unit.audit:
        db.add_audit(told)
    for promotion in unit.promotes:
        _promote(session, promotion)
    for opened in unit.opens:
        session.requests[opened.request_id] = replace(opened, title=clean(opened.title))
    session.closed.update(unit.closes)
    for entry in unit.ledger:
        budgets.settle(db, unit.key, entry)
    for attempt in unit.releases:
        db.reservations.pop((unit.key, *attempt), None)
    if unit.prompt is not None:
        db.prompts.setdefault(unit.prompt.digest, unit.prompt.content)
    tasks.write_unit(db, unit)


def _describe(session: SessionRecord, unit: Unit) -> None:
    if unit.status is not None:
        session.status, session.turn_id = unit.status, unit.turn_id
    if unit.title is not None:
        session.title = clean(unit.title)
    if unit.model is not None:
        session.model = clean(unit.model)
    if unit.makes_progress:
        session.claims = 0


def _promote(session: SessionRecord, promotion: Promotion) -> None:
    state = "refused" if promotion.refused else "promoted"
    for found in session.inbox.values():
        if found.waits and found.item.sequence == promotion.sequence:
            found.item = replace(found.item, state=state, outcome=promotion.outcome)


def _event(event: Event) -> Event:
    if not -_LATEST <= event.time < _LATEST:
        raise OverflowError("the time of an event does not fit")
    return Event(event.position, event.id, event.time, codec.decode(*codec.encode(event.body)))


def _segment(segment: Segment) -> Segment:
    return segment if segment.text.isascii() else replace(segment, text=clean(segment.text))


def _type(event: Event) -> str:
    return codec.encode(event.body)[0]


def _detail(unit: Unit) -> str:
    types = dict.fromkeys(_type(event) for event in unit.events)
    if types:
        return "+".join(types)
    kinds = {
        "segments": unit.segments,
        "inbox": unit.promotes,
        "ledger": unit.ledger,
    }
    return next((name for name, is_there in kinds.items() if is_there), "row")


def clean(text: str) -> str:
    cleaned: str = codec.without_surrogates(text)
    return cleaned
