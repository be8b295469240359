"""Puts into inboxes, and changes of items before they are promoted."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.ids import FileId, Position
from holdfast.events.inbox import Answer, InboxItem, Item, Message, Stop
from holdfast.events.role import RoleBounds
from holdfast.store import admission
from holdfast.store.admission import NO_SESSION, NOT_QUEUED, Fact, NewItem, Plan, Put, SessionFacts, StoredItem
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import TurnLimits
from proof.simulation.memory import files
from proof.simulation.memory.order import is_counted, last_in_line, turns
from proof.simulation.memory.tables import Database, InboxRecord, SessionRecord, usage_of


def put(db: Database, asked: Put) -> tuple[Accepted | Refused, str | None]:
    session = db.live(asked.key)
    if session is None:
        return NO_SESSION, None
    found = session.inbox.get(asked.item_key)
    stored = None if found is None else StoredItem(found.item, found.original, found.size)
    rule = admission.admit(asked, _facts_of(db, session), stored)
    decision = admission.decided(rule, partial(_fact, db, session))
    if not isinstance(decision, Plan):
        return decision, None
    db.add_grants(asked.key.owner, decision.grants)
    files.use(db, asked.key, decision.uses)
    return decision.receipt(_apply(session, decision, asked.now)), kind(asked.item)


def _facts_of(db: Database, session: SessionRecord) -> SessionFacts:
    return SessionFacts(
        turn_id=session.turn_id,
        head=Position(len(session.events)),
        status=session.status,
        is_runnable=session.is_runnable,
        is_held=session.holder is not None,
        is_counted=is_counted(db, session),
    )


def _fact(db: Database, session: SessionRecord, fact: Fact) -> Any:
    match fact.name:
        case "waiting":
            return len(session.waiting_messages())
        case "queue":
            return tuple(found.item for found in session.waiting_messages())
        case "has_item":
            return fact.of in session.inbox
        case "removed_by":
            removed = [found for found in session.inbox.values() if found.removed_by == fact.of]
            return tuple(found.item for found in sorted(removed, key=lambda found: found.place))
        case "request":
            states = {request: "closed" if request in session.closed else "open" for request in session.requests}
            return {str(request): state for request, state in states.items()}.get(fact.of)
        case "is_stopping":
            return is_stopping(session)
        case "owner_alone":
            return None
        case "turns":
            return turns(db, session.key.owner)
        case "stored":
            return usage_of(db, session.key.owner)
        case "answers":
            return sum(
                found.size
                for each in db.of_owner(session.key.owner)
                for found in each.waiting()
                if isinstance(found.item.item, Answer)
            )
        case "grants":
            return db.grants_of(session.key.owner)
        case "files":
            return {
                FileId(file_id): row
                for file_id in fact.ids
                if (row := db.files.get((session.key.owner, FileId(file_id)))) is not None
            }
        case "last_in_line":
            return last_in_line(db, session.key.owner)


def is_stopping(session: SessionRecord) -> bool:
    return any(isinstance(found.item.item, Stop) for found in session.waiting())


def _apply(session: SessionRecord, plan: Plan, now: int) -> InboxItem:
    for item in plan.removes:
        session.inbox[item.key].item = item
        session.inbox[item.key].removed_by = plan.removed_by
    *_, put = [_add(session, new, now) for new in plan.adds]
    if plan.wakes:
        wake(session, now, plan.since)
    if plan.rests:
        rest(session)
    return put


def _add(session: SessionRecord, new: NewItem, now: int) -> InboxItem:
    session.tail += 1
    added = new.placed(session.tail, now=now, while_running=session.turn_id is not None)
    session.inbox[new.key] = InboxRecord(added, new.payload if new.sent is None else new.sent, new.size)
    return added


def add(session: SessionRecord, item: Item, item_key: str, *, now: int, wakes: bool) -> None:
    """Add an item that does not come from a client."""
    _add(session, NewItem(item=item, key=item_key, payload=codec.encode_item(item)), now)
    if wakes:
        wake(session, now)


def wake(session: SessionRecord, now: int, since: int | None = None) -> None:
    """There is something to do, from now on or (to keep an order) from then on."""
    if not session.is_runnable:
        session.is_runnable, session.runnable_since = True, now if since is None else since
    if session.status == "idle":
        session.status = "queued"
    session.updated_at = now


def rest(session: SessionRecord) -> None:
    """An unheld session that has no work left becomes idle here; no worker need claim it to find that out."""
    if session.is_runnable and session.holder is None and session.turn_id is None and not session.waiting():
        session.is_runnable, session.runnable_since, session.noted_at = False, None, None
        session.status = "idle"


def edit_item(
    db: Database, key: Key, item_key: str, text: str, limits: TurnLimits, bounds: RoleBounds | None
) -> tuple[Refused | None, str | None]:
    session = db.live(key)
    record = None if session is None else session.inbox.get(item_key)
    if session is None or record is None:
        return NOT_QUEUED, None
    stored = StoredItem(record.item, record.original, record.size)
    plan = admission.decided(admission.admit_edit(key, text, stored, limits, bounds), partial(_fact, db, session))
    if isinstance(plan, Refused):
        return plan, None
    session.tail += 1
    record.item = replace(record.item, sequence=session.tail, item=codec.decode_item(plan.payload))
    record.size += plan.added_bytes
    return None, "message"


def remove_item(db: Database, key: Key, item_key: str) -> tuple[bool, str | None]:
    found = _waiting_message(db, key, item_key)
    if found is None:
        return False, None
    found[1].item = replace(found[1].item, state="removed", outcome="removed")
    rest(found[0])
    return True, "message"


def reorder_items(db: Database, key: Key, item_keys: Sequence[str]) -> tuple[bool, str | None]:
    session = db.live(key)
    waiting = session.waiting_messages() if session else []
    if session is None or not waiting or sorted(item_keys) != sorted(found.item.key for found in waiting):
        return False, None
    places = [found.place for found in waiting]
    for item_key, place in zip(item_keys, places, strict=True):
        session.tail += 1
        record = session.inbox[item_key]
        record.place = place
        record.item = replace(record.item, sequence=session.tail)
    return True, "messages"


def _waiting_message(db: Database, key: Key, item_key: str) -> tuple[SessionRecord, InboxRecord, Message] | None:
    session = db.live(key)
    record = session.inbox.get(item_key) if session else None
    if session is None or record is None or not record.waits or not isinstance(record.item.item, Message):
        return None
    return session, record, record.item.item


def kind(item: Item) -> str:
    return str(type(item).__struct_config__.tag)
