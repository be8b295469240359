"""Accepts items into inboxes, and edits, removes and reorders queued ones. A refused item leaves no trace."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.events import codec
from holdfast.events.ids import Position, TurnId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    Item,
    ItemState,
    Message,
    Rewind,
    Stop,
    TaskNews,
    ToBackground,
)
from holdfast.store.put import REUSED, Put
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.rows import inbox_item, turns
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import Stored, Turns


def put(db: sqlite3.Connection, call: Put) -> tuple[Accepted | Refused, str | None]:
    """The outcome and, if something was written, the kind of the item."""
    found = db.execute(SQL["item"], (*_of(call.key), call.item_key)).fetchone()
    if found is not None:
        return _again(db, call, found), None
    session = db.execute(SQL["put_session"], _of(call.key)).fetchone()
    if session is None:
        return Refused("session_not_found", "There is no such session."), None
    tail, turn_id, head, *about = session
    inbox = Inbox(db, call.key, tail=tail, turn_id=turn_id, head=head, now=call.now)
    answer = _put(inbox, call, Admission(db, call, turn_id, *about))
    return answer, _kind(call.item) if isinstance(answer, Accepted) else None


def _put(inbox: "Inbox", call: Put, admission: "Admission") -> Accepted | Refused:
    match call.item:
        case Message():
            return _put_message(inbox, call, admission)
        case Answer():
            return _put_answer(inbox, call, call.item)
        case Stop():
            accepted = inbox.stop(call.item, call.item_key)
            inbox.rest()
            return accepted
        case Rewind() | ToBackground() | TaskNews():
            item = inbox.add(call.item, call.item_key, call.payload)
            inbox.wake()
            return Accepted(item)


def _again(db: sqlite3.Connection, call: Put, found: tuple[Any, ...]) -> Accepted | Refused:
    receipt, original = inbox_item(found[:7]), found[7] if found[7] is not None else found[6]
    if isinstance(call.item, Answer) and isinstance(receipt.item, Answer):
        if receipt.item.answer_id == call.item.answer_id:
            return Accepted(receipt, duplicate=True) if call.item.says_the_same(receipt.item) else REUSED
        who = f" by {receipt.item.answered_by}" if receipt.item.answered_by else ""
        return Refused("answered_already", f"This was already answered{who}.")
    if original == call.payload:
        stop = call.item_key if isinstance(call.item, Stop) else call.stop_first
        removed = db.execute(SQL["removed_by"], (*_of(call.key), stop)).fetchall() if stop is not None else ()
        waits = receipt.state == "accepted" and _waits_still(db, call)
        items = tuple(inbox_item(row) for row in removed)
        return Accepted(receipt, duplicate=True, removed=items, waits_for_slot=waits)
    return REUSED


def _waits_still(db: sqlite3.Connection, call: Put) -> bool:
    session = db.execute(SQL["put_session"], _of(call.key)).fetchone()
    if session is None:
        return False
    _, turn_id, _, *about = session
    return Admission(db, call, turn_id, *about).waits_for_slot()


def _put_message(inbox: "Inbox", call: Put, admission: "Admission") -> Accepted | Refused:
    waiting = inbox.count_waiting()
    is_idle = not waiting and inbox.turn_id is None
    if call.only_if_idle and not is_idle:
        return Refused("busy", "The session is busy. Wait until it is idle, or queue the message.")
    if call.stop_first is None and waiting >= call.queue_limit:
        return Refused("queue_full", f"{waiting} messages wait already. Wait until one is taken up, or remove one.")
    if _is_full(inbox.db, call):
        return Refused("storage_full", call.limits.quota_sentence("storage_full"))
    if admission.is_one_too_many():
        return Refused("too_many_turns", admission.turns.refusal())
    waits = admission.waits_for_slot()
    removed: tuple[InboxItem, ...] = ()
    if call.stop_first is not None:
        removed = inbox.stop_once(call.stop_first)
    item = inbox.add(call.item, call.item_key, call.payload)
    inbox.wake(admission.since())
    return Accepted(item, removed=removed, waits_for_slot=waits, head=inbox.head, found_idle=is_idle)


def _is_full(db: sqlite3.Connection, call: Put) -> bool:
    if not call.limits.has_quota(call.key.owner):
        return False
    sessions, size = db.execute(SQL["stored"], (call.key.owner,)).fetchone()
    return call.limits.stores_too_much(Stored(sessions=sessions, stored_bytes=size))


def _put_answer(inbox: "Inbox", call: Put, answer: Answer) -> Accepted | Refused:
    request = inbox.db.execute(SQL["request_state"], (*inbox.of, answer.request_id)).fetchone()
    if request is None:
        return Refused("request_not_found", "There is no such request.")
    if request[0] != "open":
        return Refused("request_closed", "This request is closed: its turn went on or ended without an answer.")
    if inbox.db.execute(SQL["is_stopping"], inbox.of).fetchone() is not None:
        return Refused("stopping", "The turn is being stopped.")
    item = inbox.add(call.item, call.item_key, call.payload)
    inbox.wake()
    return Accepted(item)


class Admission:
    """Decides whether a message may start a turn, and when. For owners without limits nothing is counted."""

    def __init__(
        self,
        db: sqlite3.Connection,
        call: Put,
        turn_id: TurnId | None,
        status: str,
        is_runnable: bool,
        is_held: bool,
        is_counted: bool,
    ) -> None:
        owner = call.key.owner
        self._db = db
        self._owner = owner
        self._now = call.now
        self._in_flight = call.limits.in_flight_of(owner) if is_counted else None
        self._running = call.limits.running_of(owner) if is_counted else None
        is_in_flight = is_runnable and status != "waiting"
        joins = turn_id is not None and call.stop_first is None
        self._starts = not is_in_flight and not joins
        self._is_in_line = is_in_flight and not is_held and turn_id is None
        self._counted: Turns | None = None

    @property
    def turns(self) -> Turns:
        if self._counted is None:
            self._counted = turns(self._db, self._owner)
        return self._counted

    def is_one_too_many(self) -> bool:
        return self._in_flight is not None and self._starts and self.turns.in_flight >= self._in_flight

    def waits_for_slot(self) -> bool:
        if self._running is None:
            return False
        if self._starts:
            return self.turns.in_flight >= self._running
        return self._is_in_line and self.turns.slots >= self._running

    def since(self) -> int:
        """The session's place in line: after all other sessions of its owner, even if the clock was set back."""
        if self._running is None:
            return self._now
        ((last,),) = self._db.execute(SQL["last_in_line"], (self._owner,))
        return self._now if last is None else max(self._now, last + 1)


class Inbox:
    """A session's inbox within one transaction."""

    def __init__(
        self, db: sqlite3.Connection, key: Key, *, tail: int, turn_id: TurnId | None, head: Position, now: int
    ) -> None:
        self.db = db
        self.of = _of(key)
        self.tail = tail
        self.turn_id = turn_id
        self.head = head
        self.now = now

    def count_waiting(self) -> int:
        return int(self.db.execute(SQL["count_waiting"], self.of).fetchone()[0])

    def add(
        self,
        item: Item,
        item_key: str,
        payload: bytes,
        *,
        state: ItemState = "accepted",
        outcome: str = "",
        original: bytes | None = None,
    ) -> InboxItem:
        self.tail += 1
        running = self.turn_id is not None
        about = (_kind(item), state, outcome, self.now, running, payload, original)
        self.db.execute(SQL["insert_item"], (*self.of, item_key, self.tail, *about))
        return InboxItem(
            sequence=self.tail,
            key=item_key,
            state=state,
            outcome=outcome,
            accepted_at=self.now,
            while_running=running,
            item=item,
        )

    def wake(self, since: int | None = None) -> None:
        """Mark the session as runnable, from now on or (to keep an order) from `since` on."""
        self.db.execute(SQL["wake"], (*self.of, self.tail, self.now, since or self.now))

    def rest(self) -> None:
        """Mark the session as not runnable if it has nothing left to do."""
        self.db.execute(SQL["rest"], self.of)

    def stop(self, stop: Stop, item_key: str) -> Accepted:
        """Accept a stop for the turn that runs now. If no turn runs, the session is not woken, and the receipt is
        final. A stop that is meant for another turn leaves the queue as it is."""
        is_late = stop.comes_too_late(self.turn_id)
        removed = () if stop.keep_queued or is_late else self._clear_queue(item_key)
        as_sent = codec.encode_item(stop)
        bound = msgspec.structs.replace(stop, turn_id=self.turn_id)
        payload = codec.encode_item(bound)
        if is_late:
            item = self.add(bound, item_key, payload, state="promoted", outcome="turn_ended_before", original=as_sent)
            self.db.execute(SQL["raise_tail"], (*self.of, self.tail))
        elif self.turn_id is not None:
            item = self.add(bound, item_key, payload, original=as_sent)
            self.wake()
        else:
            outcome = "dequeued" if removed else "nothing_running"
            item = self.add(bound, item_key, payload, state="promoted", outcome=outcome, original=as_sent)
            self.db.execute(SQL["raise_tail"], (*self.of, self.tail))
        return Accepted(item, removed=removed)

    def stop_once(self, stop_id: str) -> tuple[InboxItem, ...]:
        """Put the stop that comes before a message, under its own id. A stop that was accepted earlier is not put
        twice."""
        if self.db.execute(SQL["item"], (*self.of, stop_id)).fetchone() is not None:
            return ()
        return self.stop(Stop(stop_id=stop_id), stop_id).removed

    def _clear_queue(self, stop: str) -> tuple[InboxItem, ...]:
        """Remove and return the queued messages. Items that a newer release put are left to that release."""
        rows = self.db.execute(SQL["waiting_messages"], self.of).fetchall()
        found = [item for item in (inbox_item(row[:7]) for row in rows) if isinstance(item.item, Message)]
        for item in found:
            self.db.execute(SQL["remove_item"], (*self.of, item.key, "stopped", stop))
        return tuple(msgspec.structs.replace(item, state="removed", outcome="stopped") for item in found)


def edit_item(db: sqlite3.Connection, key: Key, item_key: str, text: str) -> tuple[bool, str | None]:
    found = db.execute(SQL["item"], (*_of(key), item_key)).fetchone()
    if found is None:
        return False, None
    receipt = inbox_item(found[:7])
    if receipt.state != "accepted" or not isinstance(receipt.item, Message):
        return False, None
    tail = _next_tail(db, key)
    payload = codec.encode_item(msgspec.structs.replace(receipt.item, text=text))
    db.execute(SQL["edit_item"], (*_of(key), item_key, tail, payload))
    db.execute(SQL["raise_tail"], (*_of(key), tail))
    return True, "message"


def remove_item(db: sqlite3.Connection, key: Key, item_key: str) -> tuple[bool, str | None]:
    removed = db.execute(SQL["remove_item"], (*_of(key), item_key, "removed", None)).rowcount == 1
    if removed:
        db.execute(SQL["rest"], _of(key))
    return removed, "message" if removed else None


def reorder_items(db: sqlite3.Connection, key: Key, item_keys: Sequence[str]) -> tuple[bool, str | None]:
    rows = db.execute(SQL["waiting_messages"], _of(key)).fetchall()
    if not rows or sorted(item_keys) != sorted(row[1] for row in rows):
        return False, None
    tail = _next_tail(db, key)
    for offset, (item_key, row) in enumerate(zip(item_keys, rows, strict=True)):
        db.execute(SQL["move_item"], (*_of(key), item_key, tail + offset, row[7]))
    db.execute(SQL["raise_tail"], (*_of(key), tail + len(rows) - 1))
    return True, "messages"


def _next_tail(db: sqlite3.Connection, key: Key) -> int:
    return int(db.execute(SQL["put_session"], _of(key)).fetchone()[0]) + 1


def _of(key: Key) -> tuple[str, str]:
    return key.owner, key.session


def _kind(item: Item) -> str:
    return str(type(item).__struct_config__.tag)
