"""Accepts items into inboxes and lets people change their queue. Whatever is refused leaves no trace."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.events import codec
from holdfast.events.ids import TurnId
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
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.rows import inbox_item
from holdfast.store.store import Accepted, Key, Refused


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `put`."""

    key: Key
    item: Item
    item_key: str
    payload: bytes
    queue_limit: int
    only_if_idle: bool
    stop_first: str | None
    now: int


def asked(key: Key, item: Item, **rest: Any) -> Put:
    """A put, encoded while its sender still runs. Which turn a stop ends is not for its sender to say."""
    if isinstance(item, Stop):
        item = msgspec.structs.replace(item, turn_id=None)
    payload = codec.encode_item(item)
    return Put(key=key, item=codec.decode_item(payload), payload=payload, **rest)


def put(db: sqlite3.Connection, asked: Put) -> tuple[Accepted | Refused, str | None]:
    """The answer and, if something was written, its kind."""
    found = db.execute(SQL["item"], (*_of(asked.key), asked.item_key)).fetchone()
    if found is not None:
        return _again(db, asked, found), None
    session = db.execute(SQL["put_session"], _of(asked.key)).fetchone()
    if session is None:
        return Refused("session_not_found", "There is no such session."), None
    inbox = Inbox(db, asked.key, tail=session[0], turn_id=session[1], now=asked.now)
    answer = _put(inbox, asked)
    return answer, _kind(asked.item) if isinstance(answer, Accepted) else None


def _put(inbox: "Inbox", asked: Put) -> Accepted | Refused:
    match asked.item:
        case Message():
            return _put_message(inbox, asked)
        case Answer():
            return _put_answer(inbox, asked, asked.item)
        case Stop():
            return inbox.stop(asked.item, asked.item_key)
        case Rewind() | ToBackground() | TaskNews():
            item = inbox.add(asked.item, asked.item_key, asked.payload)
            inbox.wake()
            return Accepted(item)


def _again(db: sqlite3.Connection, asked: Put, found: tuple[Any, ...]) -> Accepted | Refused:
    receipt, original = inbox_item(found[:7]), found[7] if found[7] is not None else found[6]
    if isinstance(asked.item, Answer) and isinstance(receipt.item, Answer):
        if receipt.item.answer_id == asked.item.answer_id:
            return Accepted(receipt, duplicate=True)
        who = f" by {receipt.item.answered_by}" if receipt.item.answered_by else ""
        return Refused("answered_already", f"This was already answered{who}.")
    if original == asked.payload:
        stop = asked.item_key if isinstance(asked.item, Stop) else asked.stop_first
        removed = db.execute(SQL["removed_by"], (*_of(asked.key), stop)).fetchall() if stop is not None else ()
        return Accepted(receipt, duplicate=True, removed=tuple(inbox_item(row) for row in removed))
    return Refused("id_reused", "This id was already used for something else. Use a new one.")


def _put_message(inbox: "Inbox", asked: Put) -> Accepted | Refused:
    waiting = inbox.count_waiting()
    if asked.only_if_idle and (waiting or inbox.turn_id is not None):
        return Refused("busy", "The session is busy. Wait until it is idle, or queue the message.")
    if asked.stop_first is None and waiting >= asked.queue_limit:
        return Refused("queue_full", f"{waiting} messages wait already. Wait until one is taken up, or remove one.")
    removed: tuple[InboxItem, ...] = ()
    if asked.stop_first is not None:
        removed = inbox.stop_once(asked.stop_first)
    item = inbox.add(asked.item, asked.item_key, asked.payload)
    inbox.wake()
    return Accepted(item, removed=removed)


def _put_answer(inbox: "Inbox", asked: Put, answer: Answer) -> Accepted | Refused:
    request = inbox.db.execute(SQL["request_state"], (*inbox.of, answer.request_id)).fetchone()
    if request is None:
        return Refused("request_not_found", "There is no such request.")
    if request[0] != "open":
        return Refused("request_closed", "This request is closed: its turn went on or ended without an answer.")
    if inbox.db.execute(SQL["is_stopping"], inbox.of).fetchone() is not None:
        return Refused("stopping", "The turn is being stopped.")
    item = inbox.add(asked.item, asked.item_key, asked.payload)
    inbox.wake()
    return Accepted(item)


class Inbox:
    """A session's inbox within one transaction."""

    def __init__(self, db: sqlite3.Connection, key: Key, *, tail: int, turn_id: TurnId | None, now: int) -> None:
        self.db = db
        self.of = _of(key)
        self.tail = tail
        self.turn_id = turn_id
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

    def wake(self) -> None:
        self.db.execute(SQL["wake"], (*self.of, self.tail, self.now))

    def stop(self, stop: Stop, item_key: str) -> Accepted:
        """Accept a stop for the turn that runs now. With none there is nobody to wake: its receipt is final."""
        removed = () if stop.keep_queued else self._clear_queue(item_key)
        asked = codec.encode_item(stop)
        bound = msgspec.structs.replace(stop, turn_id=self.turn_id)
        payload = codec.encode_item(bound)
        if stop.meant_for is not None and stop.meant_for != self.turn_id:
            item = self.add(bound, item_key, payload, state="promoted", outcome="turn_ended_before", original=asked)
            self.db.execute(SQL["raise_tail"], (*self.of, self.tail))
        elif self.turn_id is not None:
            item = self.add(bound, item_key, payload, original=asked)
            self.wake()
        else:
            outcome = "dequeued" if removed else "nothing_running"
            item = self.add(bound, item_key, payload, state="promoted", outcome=outcome, original=asked)
            self.db.execute(SQL["raise_tail"], (*self.of, self.tail))
        return Accepted(item, removed=removed)

    def stop_once(self, stop_id: str) -> tuple[InboxItem, ...]:
        """The stop before a message, under its id. One that was accepted earlier is not put twice."""
        if self.db.execute(SQL["item"], (*self.of, stop_id)).fetchone() is not None:
            return ()
        return self.stop(Stop(stop_id=stop_id), stop_id).removed

    def _clear_queue(self, stop: str) -> tuple[InboxItem, ...]:
        rows = self.db.execute(SQL["waiting_messages"], self.of).fetchall()
        for row in rows:
            self.db.execute(SQL["remove_item"], (*self.of, row[1], "stopped", stop))
        return tuple(msgspec.structs.replace(inbox_item(row[:7]), state="removed", outcome="stopped") for row in rows)


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
