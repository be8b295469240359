"""Accepts items into inboxes, and edits, removes and reorders queued ones. A refused item leaves no trace.

Every transaction here locks the session's row first: the inbox that it reads then stays unchanged until it commits.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.events import codec
from holdfast.events.ids import Position, TurnId
from holdfast.events.inbox import InboxItem, Item, Message
from holdfast.store.admission import (
    NO_SESSION,
    Decision,
    Fact,
    NewItem,
    Plan,
    Rule,
    SessionFacts,
    StoredItem,
    admit,
)
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.rows import inbox_item, turns
from holdfast.store.put import Put
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import Stored


async def put(db: Link, call: Put) -> tuple[Accepted | Refused, str | None]:
    """The outcome and, if something was written, the kind of the item."""
    inbox = await locked(db, call.key, now=call.now)
    if inbox is None:
        return NO_SESSION, None
    decision = await _decided(db, call, admit(call, inbox.session, await _stored_item(inbox, call)))
    if not isinstance(decision, Plan):
        return decision, None
    return decision.receipt(await inbox.apply(decision)), _kind(call.item)


async def _stored_item(inbox: "Inbox", call: Put) -> StoredItem | None:
    found = await inbox.db.row("item", *inbox.of, call.item_key)
    if found is None:
        return None
    return StoredItem(inbox_item(found[:7]), found[7] if found[7] is not None else found[6])


async def _decided(db: Link, call: Put, rule: Rule) -> Decision:
    """Run the rule: answer each fact that it asks for."""
    try:
        fact = next(rule)
        while True:
            fact = rule.send(await _fact(db, call, fact))
    except StopIteration as end:
        decision: Decision = end.value
        return decision


async def _fact(db: Link, call: Put, fact: Fact) -> Any:
    of, owner = (call.key.owner, call.key.session), call.key.owner
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


async def edit_item(db: Link, key: Key, item_key: str, text: str) -> tuple[bool, str | None]:
    inbox = await locked(db, key, now=0)
    found = await db.row("item", *inbox.of, item_key) if inbox is not None else None
    if inbox is None or found is None:
        return False, None
    receipt = inbox_item(found[:7])
    if receipt.state != "accepted" or not isinstance(receipt.item, Message):
        return False, None
    inbox.tail += 1
    payload = codec.encode_item(msgspec.structs.replace(receipt.item, text=text))
    before, original = found[6:]
    inbox.added_bytes = len(payload) - (len(before) if original is not None else 0)  # The first text is kept.
    await db.run("edit_item", *inbox.of, item_key, inbox.tail, payload)
    await inbox.raise_tail()
    return True, "message"


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
