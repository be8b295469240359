"""Accepts items into inboxes, and edits, removes and reorders queued ones. A refused item leaves no trace.

Every transaction here locks the session's row first: the inbox that it reads then stays unchanged until it commits.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.events.ids import FileId, Position, TurnId
from holdfast.events.inbox import InboxItem, Item, Message
from holdfast.events.role import RoleBounds
from holdfast.store.admission import (
    NO_SESSION,
    NOT_QUEUED,
    Fact,
    NewItem,
    Plan,
    Put,
    SessionFacts,
    StoredItem,
    admit,
    admit_edit,
)
from holdfast.store.postgres import file_rows, grant_rows
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.decisions import decided
from holdfast.store.postgres.rows import inbox_item, turns
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import Stored, TurnLimits


async def put(db: Link, call: Put) -> tuple[Accepted | Refused, str | None]:
    """The outcome and, if something was written, the kind of the item."""
    inbox = await locked(db, call.key, now=call.now)
    if inbox is None:
        return NO_SESSION, None
    stored = await _stored_item(inbox, call.item_key)
    decision = await decided(admit(call, inbox.session, stored), partial(_fact, db, call.key))
    if not isinstance(decision, Plan):
        return decision, None
    return decision.receipt(await inbox.apply(decision)), _kind(call.item)


async def _stored_item(inbox: "Inbox", item_key: str) -> StoredItem | None:
    found = await inbox.db.row("item", *inbox.of, item_key)
    if found is None:
        return None
    payload, original = found[6:]
    sent = payload if original is None else original
    return StoredItem(inbox_item(found[:7]), sent, len(payload) + len(original or b""))


async def _fact(db: Link, key: Key, fact: Fact) -> Any:
    of, owner = (key.owner, key.session), key.owner
    match fact.name:
        case "waiting":
            return (await db.rows("count_waiting", *of))[0][0]
        case "queue":
            rows = await db.rows("waiting_messages", *of)
            # Items that a newer release put are left to that release.
            return tuple(item for item in (inbox_item(row[:7]) for row in rows) if isinstance(item.item, Message))
        case "has_item":
            return await db.row("item", *of, fact.of) is not None
        case "removed_by":
            return tuple(map(inbox_item, await db.rows("removed_by", *of, fact.of)))
        case "request":
            found = await db.row("request_state", *of, fact.of)
            return None if found is None else found[0]
        case "is_stopping":
            return await db.row("is_stopping", *of) is not None
        case "owner_alone":
            return await db.rows("lock_owners", [owner])
        case "turns":
            return await turns(db, owner)
        case "stored":
            ((sessions, size),) = await db.rows("stored", owner)
            return Stored(sessions=sessions, stored_bytes=size)
        case "answers":
            return (await db.rows("answer_bytes", owner))[0][0]
        case "grants":
            return await grant_rows.grants(db, owner)
        case "files":
            files = [await file_rows.find(db, owner, FileId(file_id)) for file_id in fact.ids]
            return {file.file_id: file for file in files if file is not None}
        case "last_in_line":
            return (await db.rows("last_in_line", owner))[0][0]


async def locked(db: Link, key: Key, *, now: int) -> "Inbox | None":
    """The inbox of a session, locked against other changes until this transaction ends; None: no such session."""
    found = await db.row("lock_session", key.owner, key.session)
    return None if found is None else Inbox(db, key, *found, now=now)


class Inbox:
    """A session's inbox within one transaction."""

    def __init__(
        self,
        db: Link,
        key: Key,
        tail: int,
        turn_id: TurnId | None,
        head: Position,
        status: str,
        is_runnable: bool,
        is_held: bool,
        is_counted: bool,
        *,
        now: int,
    ) -> None:
        self.db = db
        self.key = key
        self.of = (key.owner, key.session)
        self.tail = tail
        self.added_bytes = 0
        self.session = SessionFacts(
            turn_id=turn_id, head=head, status=status, is_runnable=is_runnable, is_held=is_held, is_counted=is_counted
        )
        self.now = now

    async def apply(self, plan: Plan) -> InboxItem:
        """Carry out a plan. Returns the item that was put."""
        if plan.removes:
            keys = [item.key for item in plan.removes]
            await self.db.run("remove_items", *self.of, keys, plan.removes[0].outcome, plan.removed_by)
        *_, put = [await self.add(new) for new in plan.adds]
        if plan.wakes:
            await self.wake(plan.since)
        else:
            await self.raise_tail()
        if plan.rests:
            await self.rest()
        await grant_rows.add(self.db, self.key.owner, plan.grants)
        await file_rows.use(self.db, self.key, plan.uses)
        return put

    async def add(self, new: NewItem) -> InboxItem:
        self.tail += 1
        self.added_bytes += new.size
        running = self.session.turn_id is not None
        about = (_kind(new.item), new.state, new.outcome, self.now, running, new.payload, new.sent)
        await self.db.run("insert_item", *self.of, new.key, self.tail, *about)
        return new.placed(self.tail, now=self.now, while_running=running)

    async def wake(self, since: int | None = None) -> None:
        """Mark the session as runnable, from now on or (to keep an order) from `since` on."""
        await self.db.run("wake", *self.of, self.tail, self.now, since or self.now, self.added_bytes)

    async def rest(self) -> None:
        """Mark the session as not runnable if it has nothing left to do."""
        await self.db.run("rest", *self.of)

    async def raise_tail(self) -> None:
        await self.db.run("raise_tail", *self.of, self.tail, self.added_bytes)


async def edit_item(
    db: Link, key: Key, item_key: str, text: str, limits: TurnLimits, bounds: RoleBounds | None
) -> tuple[Refused | None, str | None]:
    inbox = await locked(db, key, now=0)
    if inbox is None:
        return NOT_QUEUED, None
    rule = admit_edit(key, text, await _stored_item(inbox, item_key), limits, bounds)
    plan = await decided(rule, partial(_fact, db, key))
    if isinstance(plan, Refused):
        return plan, None
    inbox.tail += 1
    inbox.added_bytes = plan.added_bytes
    await db.run("edit_item", *inbox.of, item_key, inbox.tail, plan.payload)
    await inbox.raise_tail()
    return None, "message"


async def remove_item(db: Link, key: Key, item_key: str) -> tuple[bool, str | None]:
    inbox = await locked(db, key, now=0)
    if inbox is None or await db.run("remove_items", *inbox.of, [item_key], "removed", None) == 0:
        return False, None
    await inbox.rest()
    return True, "message"


async def reorder_items(db: Link, key: Key, item_keys: Sequence[str]) -> tuple[bool, str | None]:
    inbox = await locked(db, key, now=0)
    rows = await db.rows("waiting_messages", *inbox.of) if inbox is not None else []
    if inbox is None or not rows or sorted(item_keys) != sorted(row[1] for row in rows):
        return False, None
    sequences = [inbox.tail + 1 + offset for offset in range(len(rows))]
    await db.run("move_items", *inbox.of, list(item_keys), sequences, [row[7] for row in rows])
    inbox.tail += len(rows)
    await inbox.raise_tail()
    return True, "messages"


def _kind(item: Item) -> str:
    return str(type(item).__struct_config__.tag)
