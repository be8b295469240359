"""Puts into inboxes, and changes of items before they are promoted."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.ids import Position
from holdfast.events.inbox import Answer, InboxItem, Item, ItemState, Message, Stop, UnknownItem
from holdfast.store.put import REUSED, Put
from holdfast.store.store import Accepted, Key, Refused
from proof.simulation.memory.order import Admission
from proof.simulation.memory.tables import Database, InboxRecord, SessionRecord, usage_of


def put(db: Database, asked: Put) -> tuple[Accepted | Refused, str | None]:
    session = db.live(asked.key)
    if session is None:
        return Refused("session_not_found", "There is no such session."), None
    found = session.inbox.get(asked.item_key)
    if found is not None:
        return _again(db, session, asked, found), None
    answer = _accept(db, session, asked)
    return answer, kind(asked.item) if isinstance(answer, Accepted) else None


def _accept(db: Database, session: SessionRecord, asked: Put) -> Accepted | Refused:
    match asked.item:
        case Message():
            return _accept_message(db, session, asked)
        case Answer() as answer:
            refused = answer_refusal(session, answer)
            return refused or Accepted(add(session, asked.item, asked.item_key, now=asked.now, wakes=True))
        case Stop() as stop:
            stopped = accept_stop(session, stop, asked.item_key, asked.now)
            rest(session)
            return stopped
        case _:
            return Accepted(add(session, asked.item, asked.item_key, now=asked.now, wakes=True))


def _admission(db: Database, session: SessionRecord, asked: Put) -> Admission:
    return Admission(db, session, asked.limits, stops_first=asked.stop_first is not None, now=asked.now)


def _again(db: Database, session: SessionRecord, asked: Put, found: InboxRecord) -> Accepted | Refused:
    if isinstance(asked.item, Answer) and isinstance(found.item.item, Answer):
        if found.item.item.answer_id == asked.item.answer_id:
            return Accepted(found.item, duplicate=True) if asked.item.says_the_same(found.item.item) else REUSED
        who = f" by {found.item.item.answered_by}" if found.item.item.answered_by else ""
        return Refused("answered_already", f"This was already answered{who}.")
    if found.original != codec.encode_item(asked.item):
        return REUSED
    stop = asked.item_key if isinstance(asked.item, Stop) else asked.stop_first
    removed = sorted(
        (each for each in session.inbox.values() if stop is not None and each.removed_by == stop),
        key=lambda each: each.place,
    )
    waits = found.waits and _admission(db, session, asked).waits_for_slot()
    given_back = tuple(each.item for each in removed)
    return Accepted(found.item, duplicate=True, removed=given_back, waits_for_slot=waits)


def _accept_message(db: Database, session: SessionRecord, asked: Put) -> Accepted | Refused:
    admission = _admission(db, session, asked)
    waiting = len(session.waiting_messages())
    head, is_idle = Position(len(session.events)), not waiting and session.turn_id is None
    if asked.only_if_idle and not is_idle:
        return Refused("busy", "The session is busy. Wait until it is idle, or queue the message.")
    if asked.stop_first is None and waiting >= asked.queue_limit:
        return Refused("queue_full", f"{waiting} messages wait already. Wait until one is taken up, or remove one.")
    owner = session.key.owner
    if asked.limits.has_quota(owner) and asked.limits.stores_too_much(usage_of(db, owner)):
        return Refused("storage_full", asked.limits.quota_sentence("storage_full"))
    if refused := admission.refusal():
        return refused
    waits, since = admission.waits_for_slot(), admission.since()
    removed: tuple[InboxItem, ...] = ()
    if asked.stop_first is not None and asked.stop_first not in session.inbox:
        removed = accept_stop(session, Stop(stop_id=asked.stop_first), asked.stop_first, asked.now).removed
    item = add(session, asked.item, asked.item_key, now=asked.now, wakes=False)
    wake(session, asked.now, since)
    return Accepted(item, removed=removed, waits_for_slot=waits, head=head, found_idle=is_idle)


def answer_refusal(session: SessionRecord, answer: Answer) -> Refused | None:
    """Why an answer comes too late, if it does."""
    if answer.request_id not in session.requests:
        return Refused("request_not_found", "There is no such request.")
    if answer.request_id in session.closed:
        return Refused("request_closed", "This request is closed: its turn went on or ended without an answer.")
    if is_stopping(session):
        return Refused("stopping", "The turn is being stopped.")
    return None


def is_stopping(session: SessionRecord) -> bool:
    return any(isinstance(found.item.item, Stop) for found in session.waiting())


def accept_stop(session: SessionRecord, stop: Stop, item_key: str, now: int) -> Accepted:
    """A stop for the turn that runs now. Without one there is no holder to wake: its receipt is final. A stop that is
    meant for another turn leaves the queue unchanged."""
    is_late = stop.comes_too_late(session.turn_id)
    removed = () if stop.keep_queued or is_late else _clear_queue(session, item_key)
    bound = replace(stop, turn_id=session.turn_id)
    outcome = ""
    if is_late:
        outcome = "turn_ended_before"
    elif session.turn_id is None:
        outcome = "dequeued" if removed else "nothing_running"
    state: ItemState = "promoted" if outcome else "accepted"
    item = add(session, bound, item_key, now=now, wakes=not outcome, state=state, outcome=outcome, original=stop)
    return Accepted(item, removed=removed)


def _clear_queue(session: SessionRecord, stop: str) -> tuple[InboxItem, ...]:
    waiting = session.waiting_messages()
    for found in waiting:
        found.item = replace(found.item, state="removed", outcome="stopped")
        found.removed_by = stop
    return tuple(found.item for found in waiting)


def add(
    session: SessionRecord,
    item: Item | UnknownItem,
    item_key: str,
    *,
    now: int,
    wakes: bool,
    state: ItemState = "accepted",
    outcome: str = "",
    original: Item | None = None,
) -> InboxItem:
    """Put it at the end and, if there is something to do about it, mark the session."""
    session.tail += 1
    added = InboxItem(
        sequence=session.tail,
        key=item_key,
        state=state,
        outcome=outcome,
        accepted_at=now,
        while_running=session.turn_id is not None,
        item=item,
    )
    session.inbox[item_key] = InboxRecord(added, codec.encode_item(original or item))
    if wakes:
        wake(session, now)
    return added


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


def edit_item(db: Database, key: Key, item_key: str, text: str) -> tuple[bool, str | None]:
    found = _waiting_message(db, key, item_key)
    if found is None:
        return False, None
    session, record, message = found
    session.tail += 1
    record.item = replace(record.item, sequence=session.tail, item=replace(message, text=text))
    return True, "message"


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
