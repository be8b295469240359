"""Accepts items into inboxes, and edits, removes and reorders queued ones. A refused item leaves no trace."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.events.ids import FileId, TurnId
from holdfast.events.inbox import InboxItem, Item, Message
from holdfast.events.role import RoleBounds
from holdfast.store.admission import (
    NO_SESSION,
    Fact,
    NewItem,
    Plan,
    Put,
    SessionFacts,
    StoredItem,
    admit,
    admit_edit,
    decided,
)
from holdfast.store.sqlite import file_rows, grant_rows
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.rows import inbox_item, turns
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import Stored, TurnLimits


def put(db: sqlite3.Connection, call: Put) -> tuple[Accepted | Refused, str | None]:
    """The outcome and, if something was written, the kind of the item."""
    row = db.execute(SQL["put_session"], _of(call.key)).fetchone()
    if row is None:
        return NO_SESSION, None
    tail, turn_id, head, status, is_runnable, is_held, is_counted = row
    session = SessionFacts(
        turn_id=turn_id, head=head, status=status, is_runnable=is_runnable, is_held=is_held, is_counted=is_counted
    )
    stored = _stored_item(db, call.key, call.item_key)
    decision = decided(admit(call, session, stored), partial(_fact, db, call.key))
    if not isinstance(decision, Plan):
        return decision, None
    inbox = Inbox(db, call.key, tail=tail, turn_id=turn_id, now=call.now)
    return decision.receipt(inbox.apply(decision)), _kind(call.item)


def _stored_item(db: sqlite3.Connection, key: Key, item_key: str) -> StoredItem | None:
    found = db.execute(SQL["item"], (*_of(key), item_key)).fetchone()
    if found is None:
        return None
    payload, original = found[6:]
    sent = payload if original is None else original
    return StoredItem(inbox_item(found[:7]), sent, len(payload) + len(original or b""))


def _fact(db: sqlite3.Connection, key: Key, fact: Fact) -> Any:
    """One writer has the whole database, so its transaction is alone with every owner."""
    of = _of(key)
    match fact.name:
        case "waiting":
            return db.execute(SQL["count_waiting"], of).fetchone()[0]
        case "queue":
            rows = db.execute(SQL["waiting_messages"], of).fetchall()
            # Items that a newer release put are left to that release.
            return tuple(item for item in (inbox_item(row[:7]) for row in rows) if isinstance(item.item, Message))
        case "has_item":
            return db.execute(SQL["item"], (*of, fact.of)).fetchone() is not None
        case "removed_by":
            return tuple(map(inbox_item, db.execute(SQL["removed_by"], (*of, fact.of)).fetchall()))
        case "request":
            found = db.execute(SQL["request_state"], (*of, fact.of)).fetchone()
            return None if found is None else found[0]
        case "is_stopping":
            return db.execute(SQL["is_stopping"], of).fetchone() is not None
        case "owner_alone":
            return None
        case "turns":
            return turns(db, key.owner)
        case "stored":
            sessions, size = db.execute(SQL["stored"], (key.owner,)).fetchone()
            return Stored(sessions=sessions, stored_bytes=size)
        case "answers":
            return db.execute(SQL["answer_bytes"], (key.owner,)).fetchone()[0]
        case "grants":
            return grant_rows.grants(db, key.owner)
        case "files":
            found = (file_rows.find(db, key.owner, FileId(file_id)) for file_id in fact.ids)
            return {row.file_id: row for row in found if row is not None}
        case "last_in_line":
            return db.execute(SQL["last_in_line"], (key.owner,)).fetchone()[0]


class Inbox:
    """A session's inbox within one transaction."""

    def __init__(self, db: sqlite3.Connection, key: Key, *, tail: int, turn_id: TurnId | None, now: int) -> None:
        self.db = db
        self.key = key
        self.of = _of(key)
        self.tail = tail
        self.added_bytes = 0
        self.turn_id = turn_id
        self.now = now

    def apply(self, plan: Plan) -> InboxItem:
        """Carry out a plan. Returns the item that was put."""
        for item in plan.removes:
            self.db.execute(SQL["remove_item"], (*self.of, item.key, item.outcome, plan.removed_by))
        *_, put = [self.add(new) for new in plan.adds]
        if plan.wakes:
            self.wake(plan.since)
        else:
            self.raise_tail()
        if plan.rests:
            self.db.execute(SQL["rest"], self.of)
        grant_rows.add(self.db, self.key.owner, plan.grants)
        file_rows.use(self.db, self.key, plan.uses)
        return put

    def add(self, new: NewItem) -> InboxItem:
        self.tail += 1
        self.added_bytes += new.size
        running = self.turn_id is not None
        about = (_kind(new.item), new.state, new.outcome, self.now, running, new.payload, new.sent)
        self.db.execute(SQL["insert_item"], (*self.of, new.key, self.tail, *about))
        return new.placed(self.tail, now=self.now, while_running=running)

    def wake(self, since: int | None = None) -> None:
        """Mark the session as runnable, from now on or (to keep an order) from `since` on."""
        self.db.execute(SQL["wake"], (*self.of, self.tail, self.now, since or self.now, self.added_bytes))

    def raise_tail(self) -> None:
        self.db.execute(SQL["raise_tail"], (*self.of, self.tail, self.added_bytes))


def edit_item(
    db: sqlite3.Connection, key: Key, item_key: str, text: str, limits: TurnLimits, bounds: RoleBounds | None
) -> tuple[Refused | None, str | None]:
    plan = decided(admit_edit(key, text, _stored_item(db, key, item_key), limits, bounds), partial(_fact, db, key))
    if isinstance(plan, Refused):
        return plan, None
    tail = _next_tail(db, key)
    db.execute(SQL["edit_item"], (*_of(key), item_key, tail, plan.payload))
    db.execute(SQL["raise_tail"], (*_of(key), tail, plan.added_bytes))
    return None, "message"


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
    db.execute(SQL["raise_tail"], (*_of(key), tail + len(rows) - 1, 0))
    return True, "messages"


def _next_tail(db: sqlite3.Connection, key: Key) -> int:
    return int(db.execute(SQL["put_session"], _of(key)).fetchone()[0]) + 1


def _of(key: Key) -> tuple[str, str]:
    return key.owner, key.session


def _kind(item: Item) -> str:
    return str(type(item).__struct_config__.tag)
