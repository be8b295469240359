"""Accepts items into inboxes, and edits, removes and reorders queued ones. A refused item leaves no trace.

Every transaction here locks the session's row first: the inbox that it reads then stays unchanged until it commits.
"""

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
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.rows import inbox_item, turns
from holdfast.store.put import REUSED, Put
from holdfast.store.store import Accepted, Key, Refused
from holdfast.store.turn_limits import Stored, Turns


async def put(db: Link, call: Put) -> tuple[Accepted | Refused, str | None]:
    """The outcome and, if something was written, the kind of the item."""
    inbox = await locked(db, call.key, now=call.now)
    if inbox is None:
        return Refused("session_not_found", "There is no such session."), None
    found = await db.row("item", *inbox.of, call.item_key)
    if found is not None:
        return await _again(inbox, call, found), None
    answer = await _put(inbox, call, Admission(inbox, call))
    return answer, _kind(call.item) if isinstance(answer, Accepted) else None


async def _put(inbox: "Inbox", call: Put, admission: "Admission") -> Accepted | Refused:
    match call.item:
        case Message():
            return await _put_message(inbox, call, admission)
        case Answer():
            return await _put_answer(inbox, call, call.item)
        case Stop():
            accepted = await inbox.stop(call.item, call.item_key)
            await inbox.rest()
            return accepted
        case Rewind() | ToBackground() | TaskNews():
            item = await inbox.add(call.item, call.item_key, call.payload)
            await inbox.wake()
            return Accepted(item)


async def _again(inbox: "Inbox", call: Put, found: tuple[Any, ...]) -> Accepted | Refused:
    receipt, original = inbox_item(found[:7]), found[7] if found[7] is not None else found[6]
    if isinstance(call.item, Answer) and isinstance(receipt.item, Answer):
        if receipt.item.answer_id == call.item.answer_id:
            return Accepted(receipt, duplicate=True) if call.item.says_the_same(receipt.item) else REUSED
        who = f" by {receipt.item.answered_by}" if receipt.item.answered_by else ""
        return Refused("answered_already", f"This was already answered{who}.")
    if original == call.payload:
        stop = call.item_key if isinstance(call.item, Stop) else call.stop_first
        removed = await inbox.db.rows("removed_by", *inbox.of, stop) if stop is not None else ()
        waits = receipt.state == "accepted" and await Admission(inbox, call).waits_for_slot()
        items = tuple(inbox_item(row) for row in removed)
        return Accepted(receipt, duplicate=True, removed=items, waits_for_slot=waits)
    return REUSED


async def _put_message(inbox: "Inbox", call: Put, admission: "Admission") -> Accepted | Refused:
    waiting = await inbox.count_waiting()
    is_idle = not waiting and inbox.turn_id is None
    if call.only_if_idle and not is_idle:
        return Refused("busy", "The session is busy. Wait until it is idle, or queue the message.")
    if call.stop_first is None and waiting >= call.queue_limit:
        return Refused("queue_full", f"{waiting} messages wait already. Wait until one is taken up, or remove one.")
    await admission.begin()
    if await _is_full(inbox.db, call):
        return Refused("storage_full", call.limits.quota_sentence("storage_full"))
    if await admission.is_one_too_many():
        return Refused("too_many_turns", (await admission.turns()).refusal())
    waits = await admission.waits_for_slot()
    removed: tuple[InboxItem, ...] = ()
    if call.stop_first is not None:
        removed = await inbox.stop_once(call.stop_first)
    item = await inbox.add(call.item, call.item_key, call.payload)
    await inbox.wake(await admission.since())
    return Accepted(item, removed=removed, waits_for_slot=waits, head=inbox.head, found_idle=is_idle)


async def _is_full(db: Link, call: Put) -> bool:
    if not call.limits.has_quota(call.key.owner):
        return False
    ((sessions, size),) = await db.rows("stored", call.key.owner)
    return call.limits.stores_too_much(Stored(sessions=sessions, stored_bytes=size))


async def _put_answer(inbox: "Inbox", call: Put, answer: Answer) -> Accepted | Refused:
    request = await inbox.db.row("request_state", *inbox.of, answer.request_id)
    if request is None:
        return Refused("request_not_found", "There is no such request.")
    if request[0] != "open":
        return Refused("request_closed", "This request is closed: its turn went on or ended without an answer.")
    if await inbox.db.row("is_stopping", *inbox.of) is not None:
        return Refused("stopping", "The turn is being stopped.")
    item = await inbox.add(call.item, call.item_key, call.payload)
    await inbox.wake()
    return Accepted(item)


async def locked(db: Link, key: Key, *, now: int) -> "Inbox | None":
    """The inbox of a session, locked against other changes until this transaction ends; None: no such session."""
    found = await db.row("lock_session", key.owner, key.session)
    return None if found is None else Inbox(db, key, *found, now=now)


class Admission:
    """Decides whether a message may start a turn, and when. For owners without limits nothing is counted."""

    def __init__(self, inbox: "Inbox", call: Put) -> None:
        owner = call.key.owner
        self._db = inbox.db
        self._owner = owner
        self._now = call.now
        self._in_flight = call.limits.in_flight_of(owner) if inbox.is_counted else None
        self._running = call.limits.running_of(owner) if inbox.is_counted else None
        is_in_flight = inbox.is_runnable and inbox.status != "waiting"
        joins = inbox.turn_id is not None and call.stop_first is None
        self._starts = not is_in_flight and not joins
        self._is_in_line = is_in_flight and not inbox.is_held and inbox.turn_id is None
        self._counted: Turns | None = None

    async def begin(self) -> None:
        """Lock the owner: until this transaction ends, no other one admits or claims turns of this owner, so that of
        two messages only one gets the last place."""
        if self._in_flight is not None or self._running is not None:
            await self._db.rows("lock_owners", [self._owner])

    async def turns(self) -> Turns:
        if self._counted is None:
            self._counted = await turns(self._db, self._owner)
        return self._counted

    async def is_one_too_many(self) -> bool:
        return self._in_flight is not None and self._starts and (await self.turns()).in_flight >= self._in_flight

    async def waits_for_slot(self) -> bool:
        if self._running is None:
            return False
        if self._starts:
            return (await self.turns()).in_flight >= self._running
        return self._is_in_line and (await self.turns()).slots >= self._running

    async def since(self) -> int:
        """The session's place in line: after all other sessions of its owner, even if the clock was set back."""
        if self._running is None:
            return self._now
        ((last,),) = await self._db.rows("last_in_line", self._owner)
        return self._now if last is None else max(self._now, last + 1)


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
        self.turn_id = turn_id
        self.head = head
        self.status = status
        self.is_runnable = is_runnable
        self.is_held = is_held
        self.is_counted = is_counted
        self.now = now

    async def count_waiting(self) -> int:
        found = await self.db.row("count_waiting", *self.of)
        return int(found[0]) if found else 0

    async def add(
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
        await self.db.run("insert_item", *self.of, item_key, self.tail, *about)
        return InboxItem(
            sequence=self.tail,
            key=item_key,
            state=state,
            outcome=outcome,
            accepted_at=self.now,
            while_running=running,
            item=item,
        )

    async def wake(self, since: int | None = None) -> None:
        """Mark the session as runnable, from now on or (to keep an order) from `since` on."""
        await self.db.run("wake", *self.of, self.tail, self.now, since or self.now)

    async def rest(self) -> None:
        """Mark the session as not runnable if it has nothing left to do."""
        await self.db.run("rest", *self.of)

    async def raise_tail(self) -> None:
        await self.db.run("raise_tail", *self.of, self.tail)

    async def stop(self, stop: Stop, item_key: str) -> Accepted:
        """Accept a stop for the turn that runs now. If no turn runs, the session is not woken, and the receipt is
        final. A stop that is meant for another turn leaves the queue as it is."""
        is_late = stop.comes_too_late(self.turn_id)
        removed = () if stop.keep_queued or is_late else await self._clear_queue(item_key)
        as_sent = codec.encode_item(stop)
        bound = msgspec.structs.replace(stop, turn_id=self.turn_id)
        payload = codec.encode_item(bound)
        if is_late:
            outcome = "turn_ended_before"
        elif self.turn_id is None:
            outcome = "dequeued" if removed else "nothing_running"
        else:
            item = await self.add(bound, item_key, payload, original=as_sent)
            await self.wake()
            return Accepted(item, removed=removed)
        item = await self.add(bound, item_key, payload, state="promoted", outcome=outcome, original=as_sent)
        await self.raise_tail()
        return Accepted(item, removed=removed)

    async def stop_once(self, stop_id: str) -> tuple[InboxItem, ...]:
        """Put the stop that comes before a message, under its own id. A stop that was accepted earlier is not put
        twice."""
        if await self.db.row("item", *self.of, stop_id) is not None:
            return ()
        return (await self.stop(Stop(stop_id=stop_id), stop_id)).removed

    async def _clear_queue(self, stop: str) -> tuple[InboxItem, ...]:
        """Remove and return the queued messages. Items that a newer release put are left to that release."""
        rows = await self.db.rows("waiting_messages", *self.of)
        found = [item for item in (inbox_item(row[:7]) for row in rows) if isinstance(item.item, Message)]
        if found:
            await self.db.run("remove_items", *self.of, [item.key for item in found], "stopped", stop)
        return tuple(msgspec.structs.replace(item, state="removed", outcome="stopped") for item in found)


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
