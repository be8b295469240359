"""Admission: decides whether an item may enter a session's inbox, and what is written then.

The rules are pure and the same for every store. `admit` is a generator: it yields the facts that it needs, one by one
and only where they matter, and returns a decision. A store runs it inside the transaction of the put: it reads each
fact from its tables, and applies the plan in the same transaction. Statements and locks differ between stores; the
rules do not. News of a task is not put: a store adds it to the inbox in the transaction that changes the task's row.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.events import codec
from holdfast.events.ids import FileId, Key, Position, TurnId
from holdfast.events.inbox import (
    Answer,
    CancelCompaction,
    Compact,
    InboxItem,
    Item,
    ItemState,
    Message,
    Rewind,
    Stop,
    TaskNews,
    ToBackground,
    UnknownItem,
)
from holdfast.events.message import AttachedFile
from holdfast.events.role import RoleBounds
from holdfast.store.files import FileRow
from holdfast.store.grants import Grant, NewGrants, TooManyGrants, admit_grants
from holdfast.store.store import Accepted, Refused
from holdfast.store.turn_limits import Stored, TurnLimits, Turns

SHORT_ANSWER_BYTES: Final = 4_096
"""An answer of up to so many bytes, as stored, is accepted also when its owner's storage is full, so that every request
can be answered: it is enough for a decision with a few rules, a reply of a person, or a failed call with its reason.
The overrun is bounded: a session has at most one open request for each call of a step."""


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one `put` call, encoded."""

    key: Key
    item: Item
    item_key: str
    payload: bytes
    queue_limit: int
    only_if_idle: bool
    stop_first: str | None
    limits: TurnLimits
    now: int
    grants: NewGrants | None = None
    max_file_bytes: int = 0
    """The files of a message together."""


def encode_put(key: Key, item: Item, **rest: Any) -> Put:
    """Encode a put on its sender's side of the call. A sender chooses neither the turn that a stop ends nor what is
    known of a message's files, so both are cleared."""
    if isinstance(item, Stop):
        item = msgspec.structs.replace(item, turn_id=None)
    if isinstance(item, Message):
        item = msgspec.structs.replace(item, files=())
    payload = codec.encode_item(item)
    stored = codec.decode_item(payload)
    assert not isinstance(stored, UnknownItem), f"an item that this release can't read back: {item}"
    return Put(key=key, item=stored, payload=payload, **rest)


LOGGED_COPIES: Final = 2
"""How often the log has the text of an answer at most: in the event that closes the request, and in the result."""


class Fact(NamedTuple):
    """A question to the store about the put's session or its owner.

    - `waiting`: how many messages are queued (int)
    - `queue`: the queued messages (tuple of `InboxItem`)
    - `has_item`: whether the inbox has an item with the key `of` (bool)
    - `removed_by`: the messages that the stop with the key `of` removed (tuple of `InboxItem`)
    - `request`: the state of the request `of` (str; None: there is none)
    - `is_stopping`: whether an accepted stop waits (bool)
    - `owner_alone`: nothing to tell; from here on, no other transaction admits or claims turns of the owner
    - `turns`: the turns of the owner (`Turns`)
    - `stored`: how much the owner has stored (`Stored`)
    - `answers`: how many bytes the owner's answers have that are accepted and not yet promoted (int)
    - `grants`: the permissions of the owner beyond single sessions (tuple of `Grant`)
    - `files`: which of the files `ids` the owner has (dict of `FileRow`)
    - `last_in_line`: since when the last waiting session of the owner waits (int; None: none waits)
    """

    name: Literal[
        "waiting",
        "queue",
        "has_item",
        "removed_by",
        "request",
        "is_stopping",
        "owner_alone",
        "turns",
        "stored",
        "answers",
        "grants",
        "last_in_line",
        "files",
    ]
    of: str = ""
    ids: tuple[str, ...] = ()


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The row of the put's session."""

    turn_id: TurnId | None
    head: Position
    status: str
    is_runnable: bool
    is_held: bool
    is_counted: bool
    """Its turn takes a slot of its owner. A sub-session uses the slot of its parent's turn."""


class StoredItem(msgspec.Struct, frozen=True):
    """The item that an earlier put stored under the same key, its content as it was sent then, and its bytes."""

    receipt: InboxItem
    sent: bytes
    size: int


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item to be added at the end of the inbox."""

    item: Item
    key: str
    payload: bytes
    state: ItemState = "accepted"
    outcome: str = ""
    sent: bytes | None = None
    """The content as it was sent, if that is not the payload."""

    @property
    def size(self) -> int:
        """How many bytes of the owner's storage the item takes up, for as long as its session exists: its row stays
        when it is promoted or removed, because a repeated put gets the same receipt."""
        return len(self.payload) + len(self.sent or b"")

    def placed(self, sequence: int, *, now: int, while_running: bool) -> InboxItem:
        return InboxItem(
            sequence=sequence,
            key=self.key,
            state=self.state,
            outcome=self.outcome,
            accepted_at=now,
            while_running=while_running,
            item=self.item,
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes of an accepted put. They are applied in the order of the fields."""

    removes: tuple[InboxItem, ...] = ()
    """Messages to be taken out of the queue, as they are afterwards."""
    removed_by: str = ""
    """The key of the stop that takes them out."""
    adds: tuple[NewItem, ...]
    """The last of them is the item that was put."""
    grants: tuple[Grant, ...] = ()
    """Permissions that come into force with the item."""
    uses: tuple[FileId, ...] = ()
    """Files that the session uses from now on."""
    wakes: bool = True
    """The session becomes runnable. Otherwise only its tail rises."""
    since: int | None = None
    """The session's place in line, if it was not runnable; None: now."""
    rests: bool = False
    """The session is no longer runnable if nothing is left to do."""
    waits_for_slot: bool = False
    found_idle: bool = False
    head: Position = Position(0)

    def receipt(self, item: InboxItem) -> Accepted:
        return Accepted(
            item,
            removed=self.removes,
            waits_for_slot=self.waits_for_slot,
            head=self.head,
            found_idle=self.found_idle,
        )


Decision = Accepted | Refused | Plan
"""`Accepted` is the receipt of a put that writes nothing: a repeated one, or a stop that changes nothing."""

Rule = Generator[Fact, Any, Decision]


class EditPlan(msgspec.Struct, frozen=True):
    """The writes of an accepted edit: the payload of the message, and a raised tail."""

    payload: bytes
    added_bytes: int


NO_SESSION = Refused("session_not_found", "There is no such session.")
NOT_QUEUED = Refused("message_not_queued", "This message is not waiting (any more).")
REUSED: Final = Refused("id_reused", "This id was already used for something else. Use a new one.")
"""The refusal of a put that reuses an id with other content: nothing is stored."""

_T = TypeVar("_T")
_F = TypeVar("_F")


def decided(rule: Generator[_F, Any, _T], look: Callable[[_F], Any]) -> _T:
    """Run a rule: answer each fact that it asks for."""
    try:
        fact = next(rule)
        while True:
            fact = rule.send(look(fact))
    except StopIteration as end:
        decision: _T = end.value
        return decision


def admit(call: Put, session: SessionFacts, found: StoredItem | None) -> Rule:
    """Decides a put. `found` is the item that the inbox already has under the same key."""
    if found is not None:
        return (yield from _repeat(call, session, found))
    match call.item:
        case Message():
            return (yield from _message(call, session))
        case Answer() as answer:
            return (yield from _answer(call, answer))
        case Stop() as stop:
            plan = yield from _stop(session, stop, call.item_key)
            if (yield from _has_no_room(call, plan)):
                return Accepted(plan.adds[0].placed(0, now=call.now, while_running=session.turn_id is not None))
            return plan
        case Rewind():
            plan = yield from _after_stop(call, session, Plan(adds=(_as_put(call),)))
            return (yield from _full(call.key, call.limits, sum(new.size for new in plan.adds))) or plan
        case ToBackground() | Compact() | CancelCompaction():
            return (yield from _full(call.key, call.limits, len(call.payload))) or Plan(adds=(_as_put(call),))
        case TaskNews():
            return Plan(adds=(_as_put(call),))


def admit_edit(
    key: Key, text: str, found: StoredItem | None, limits: TurnLimits, bounds: RoleBounds | None = None
) -> Generator[Fact, Any, EditPlan | Refused]:
    """Decides an edit of a queued message: an `EditPlan`, or a `Refused`. The text that was sent first is kept beside
    the new one, because a repeated put is compared with it. An edit that takes up no more room is never refused."""
    if found is None or found.receipt.state != "accepted" or not isinstance(found.receipt.item, Message):
        return NOT_QUEUED
    message = found.receipt.item
    edited = msgspec.structs.replace(message, text=text, bounds=message.bounds if bounds is None else bounds)
    payload = codec.encode_item(edited)
    added = len(payload) + len(found.sent) - found.size
    refused = (yield from _full(key, limits, added)) if added > 0 else None
    return refused or EditPlan(payload, added)


def _repeat(call: Put, session: SessionFacts, found: StoredItem) -> Rule:
    """The first answer to a request wins, and the same answer again gets the same receipt. Other content under a used
    key is refused."""
    receipt = found.receipt
    if isinstance(call.item, Answer) and isinstance(receipt.item, Answer):
        if receipt.item.answer_id == call.item.answer_id:
            return Accepted(receipt, duplicate=True) if call.item.says_the_same(receipt.item) else REUSED
        who = f" by {receipt.item.answered_by}" if receipt.item.answered_by else ""
        return Refused("answered_already", f"This was already answered{who}.")
    if found.sent != call.payload and not _is_same_message(call.item, found.sent):
        return REUSED
    stop = call.item_key if isinstance(call.item, Stop) else call.stop_first
    removed = (yield Fact("removed_by", stop)) if stop is not None else ()
    waits = receipt.state == "accepted" and (yield from _waits_for_slot(_Start(call, session)))
    return Accepted(receipt, duplicate=True, removed=removed, waits_for_slot=waits)


def _is_same_message(item: Item, sent: bytes) -> bool:
    """Whether the message was sent before by a caller with another role, or under another policy."""
    first = codec.decode_item(sent) if isinstance(item, Message) else None
    return isinstance(item, Message) and isinstance(first, Message) and item.says_the_same(first)


def _answer(call: Put, answer: Answer) -> Rule:
    state: str | None = yield Fact("request", answer.request_id)
    if state is None:
        return Refused("request_not_found", "There is no such request.")
    if state != "open":
        return Refused("request_closed", "This request is closed: its turn went on or ended without an answer.")
    if (yield Fact("is_stopping")):
        return Refused("stopping", "The turn is being stopped.")
    if refused := (yield from _long_answer_full(call)):
        return refused
    grants = yield from _new_grants(call)
    return grants if isinstance(grants, Refused) else Plan(adds=(_as_put(call),), grants=grants)


def _new_grants(call: Put) -> Generator[Fact, Any, tuple[Grant, ...] | Refused]:
    """The permissions that an answer newly grants beyond its session. They are written with the answer. So the same
    answer again, which has its receipt already, never grants what was revoked meanwhile."""
    if call.grants is None:
        return ()
    yield Fact("owner_alone")
    held: tuple[Grant, ...] = yield Fact("grants")
    new = admit_grants(held, call.grants.place, call.grants.rules, call.grants.origin)
    return Refused("too_many_permissions", new.message) if isinstance(new, TooManyGrants) else new


def _long_answer_full(call: Put) -> Generator[Fact, Any, Refused | None]:
    """The refusal of a long answer for which there is no room: its request stays open. The answer needs room in the
    inbox and, once it is promoted, in the log, where other answers that wait have their room already."""
    size = len(call.payload)
    if size <= SHORT_ANSWER_BYTES or not call.limits.bounds_bytes(call.key.owner):
        return None
    yield Fact("owner_alone")
    waiting: int = yield Fact("answers")
    refused = yield from _full(call.key, call.limits, size + LOGGED_COPIES * (size + waiting))
    if refused is None:
        return None
    return Refused(
        refused.code,
        f"There is no room for this answer of {size:,} bytes: your sessions may take up {call.limits.stored_bytes:,} "
        f"bytes. Give a shorter one ({SHORT_ANSWER_BYTES:,} bytes always have room), or delete a session first.",
    )


def _stop(session: SessionFacts, stop: Stop, item_key: str) -> Generator[Fact, Any, Plan]:
    """A stop is for the turn that runs now. If no turn runs, the session is not woken, and the receipt is final. A stop
    that is meant for another turn leaves the queue as it is."""
    is_late = stop.comes_too_late(session.turn_id)
    queued: tuple[InboxItem, ...] = () if stop.keep_queued or is_late else (yield Fact("queue"))
    outcome = ""
    if is_late:
        outcome = "turn_ended_before"
    elif session.turn_id is None:
        outcome = "dequeued" if queued else "nothing_running"
    bound = msgspec.structs.replace(stop, turn_id=session.turn_id)
    return Plan(
        removes=tuple(msgspec.structs.replace(item, state="removed", outcome="stopped") for item in queued),
        removed_by=item_key,
        adds=(
            NewItem(
                item=bound,
                key=item_key,
                payload=codec.encode_item(bound),
                state="promoted" if outcome else "accepted",
                outcome=outcome,
                sent=codec.encode_item(stop),
            ),
        ),
        wakes=not outcome,
        rests=True,
    )


def _message(call: Put, session: SessionFacts) -> Rule:
    waiting: int = yield Fact("waiting")
    is_idle = not waiting and session.turn_id is None
    if call.only_if_idle and not is_idle:
        return Refused("busy", "The session is busy. Wait until it is idle, or queue the message.")
    if call.stop_first is None and waiting >= call.queue_limit:
        return Refused("queue_full", f"{waiting} messages wait already. Wait until one is taken up, or remove one.")
    start = _Start(call, session)
    if start.is_limited:
        yield Fact("owner_alone")
    if refused := (yield from _full(call.key, call.limits, len(call.payload))):
        return refused
    if start.begins and start.max_in_flight is not None:
        turns: Turns = yield Fact("turns")
        if turns.in_flight >= start.max_in_flight:
            return Refused("too_many_turns", turns.refusal())
    waits = yield from _waits_for_slot(start)
    since = yield from _place_in_line(start, call.now)
    added = yield from _with_files(call)
    if isinstance(added, Refused):
        return added
    plan = Plan(
        adds=(added,),
        uses=tuple(file.file_id for file in added.item.files) if isinstance(added.item, Message) else (),
        since=since,
        waits_for_slot=waits,
        found_idle=is_idle,
        head=session.head,
    )
    return (yield from _after_stop(call, session, plan))


def _with_files(call: Put) -> Generator[Fact, Any, NewItem | Refused]:
    """The message with those of its files that its owner has; the others are dropped. They can't be deleted before this
    transaction ends."""
    if not isinstance(call.item, Message) or not call.item.file_ids:
        return _as_put(call)
    yield Fact("owner_alone")
    found: Mapping[FileId, FileRow] = yield Fact("files", ids=call.item.file_ids)
    rows = [found[file_id] for file_id in dict.fromkeys(call.item.file_ids) if file_id in found]
    if sum(row.size for row in rows) > call.max_file_bytes:
        return Refused(
            "message_files_too_large", f"The files of a message have at most {call.max_file_bytes:,} bytes together."
        )
    files = tuple(
        AttachedFile(file_id=row.file_id, name=row.name, media_type=row.media_type, size=row.size) for row in rows
    )
    item = msgspec.structs.replace(call.item, files=files)
    return NewItem(item=item, key=call.item_key, payload=codec.encode_item(item), sent=call.payload)


def _after_stop(call: Put, session: SessionFacts, plan: Plan) -> Generator[Fact, Any, Plan]:
    """The plan of an item that stops the running turn first, if it was put with `stop_first`."""
    if call.stop_first is None or (yield Fact("has_item", call.stop_first)):
        return plan
    stopped = yield from _stop(session, Stop(stop_id=call.stop_first), call.stop_first)
    return msgspec.structs.replace(
        plan,
        removes=stopped.removes,
        removed_by=stopped.removed_by,
        adds=(*stopped.adds, *plan.adds),
        since=None if stopped.wakes else plan.since,  # The stop woke the session first.
    )


def _full(key: Key, limits: TurnLimits, added: int) -> Generator[Fact, Any, Refused | None]:
    """The refusal of writes for which the owner's storage has no room. Short answers and stops are never refused: they
    let the work that was accepted come to its end."""
    if not limits.bounds_bytes(key.owner):
        return None
    yield Fact("owner_alone")
    stored: Stored = yield Fact("stored")
    return (
        Refused("storage_full", limits.quota_sentence("storage_full"))
        if limits.stores_too_much(stored, added)
        else None
    )


def _has_no_room(call: Put, stopped: Plan) -> Generator[Fact, Any, bool]:
    """Whether a stop would only add a row, for which there is no room: it has nothing to stop, or another stop waits
    already. Then it gets its receipt, and none is stored."""
    if stopped.removes or not call.limits.bounds_bytes(call.key.owner):
        return False
    if stopped.wakes and not (yield Fact("is_stopping")):
        return False
    return (yield from _full(call.key, call.limits, stopped.adds[0].size)) is not None


def _as_put(call: Put) -> NewItem:
    return NewItem(item=call.item, key=call.item_key, payload=call.payload)


class _Start:
    """Whether a message starts a turn, and which limits of its owner apply."""

    def __init__(self, call: Put, session: SessionFacts) -> None:
        owner = call.key.owner
        self.max_in_flight = call.limits.in_flight_of(owner) if session.is_counted else None
        self.max_running = call.limits.running_of(owner) if session.is_counted else None
        is_in_flight = session.is_runnable and session.status != "waiting"
        joins = session.turn_id is not None and call.stop_first is None
        self.begins = not is_in_flight and not joins
        self.is_in_line = is_in_flight and not session.is_held and session.turn_id is None
        """The session already waits to be claimed for a new turn."""

    @property
    def is_limited(self) -> bool:
        return self.max_in_flight is not None or self.max_running is not None


def _waits_for_slot(start: _Start) -> Generator[Fact, Any, bool]:
    """Whether the turn does not start at once, because other turns of the owner take up its slots."""
    if start.max_running is None or not (start.begins or start.is_in_line):
        return False
    turns: Turns = yield Fact("turns")
    return (turns.in_flight if start.begins else turns.slots) >= start.max_running


def _place_in_line(start: _Start, now: int) -> Generator[Fact, Any, int | None]:
    if start.max_running is None:
        return None
    return end_of_line((yield Fact("last_in_line")), now)


def end_of_line(last: int | None, now: int) -> int:
    """The place after all other sessions of an owner, even if the clock was set back. `last` is the place of the last
    one; None: none waits."""
    return now if last is None else max(now, last + 1)
