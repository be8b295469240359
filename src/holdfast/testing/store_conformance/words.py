"""The vocabulary of the store tests: keys, builders of events and rows, and steps that bring a session into a state."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import (
    EventId,
    Fence,
    MessageId,
    Owner,
    Position,
    RequestId,
    SessionId,
    ToolCallId,
    TurnId,
)
from holdfast.events.inbox import INBOX_VERSION, Answer, InboxItem, Message, PermissionAnswer, Rewind, Stop
from holdfast.events.message import UserMessage
from holdfast.events.session import SessionInfo, SessionStarted
from holdfast.events.turn import TurnStarted
from holdfast.store.budget import Ask
from holdfast.store.clock import Clock
from holdfast.store.grants import NewGrants
from holdfast.store.store import (
    Accepted,
    Claim,
    Committed,
    Key,
    Lease,
    LedgerEntry,
    NewSession,
    Outcome,
    Promotion,
    Refused,
    RequestRow,
    Segment,
    Store,
    Unit,
)
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits

KEY = Key(Owner("ann"), SessionId("first"))
OTHER = Key(Owner("ann"), SessionId("second"))
TURN = TurnId("turn-1")
REQUEST = RequestId("request-1")
MANY = 1000


class OpenStore(Protocol):
    """Opens the database once more, as another process would."""

    def __call__(
        self,
        *,
        node: str = "here",
        tools: frozenset[str] = frozenset(),
        secret_key: str = "",
        clock: Clock | None = None,
        limits: TurnLimits = NO_LIMITS,
        inbox_version: int = INBOX_VERSION,
    ) -> Awaitable[Store]: ...


class LoseClaim(Protocol):
    """Resets the row of a session to its state before a claim, as a failover does that lost the claim's transaction:
    it has no holder, and its fence is the given one."""

    def __call__(self, key: Key, fence: Fence) -> Awaitable[None]: ...


class AgeTasks(Protocol):
    """Shifts the times at which tasks were opened and ended, and hosts last reported, into the past."""

    def __call__(self, seconds: int) -> Awaitable[None]: ...


class AgeSpending(Protocol):
    """Shifts what was spent and reserved into the past."""

    def __call__(self, days: int) -> Awaitable[None]: ...


class InsertItem(Protocol):
    """Writes an accepted inbox item into the database and wakes its session, without the code of this release."""

    def __call__(self, key: Key, item_key: str, *, sequence: int, kind: str, payload: bytes) -> Awaitable[None]: ...


def event(body: Body, *, time: int = 1) -> Event:
    return Event(Position(0), EventId(f"event-{id(body)}"), time, body)


def info(text: str) -> Event:
    return event(SessionInfo(info_type="note", message=text))


def said(text: str) -> Event:
    return event(
        UserMessage(message_id=MessageId(f"m-{text}"), turn_id=TURN, content=text, delivery="idle"),
    )


def started(key: Key) -> Event:
    return event(SessionStarted(session_id=key.session, producer="test", start_time=1))


def segment(text: str, *, offset: int, block: int = 0, message: str = "answer") -> Segment:
    return Segment(message_id=MessageId(message), attempt=1, block=block, offset=offset, kind="text", text=text)


def request(request_id: RequestId = REQUEST) -> RequestRow:
    return RequestRow(
        request_id=request_id,
        kind="permission",
        turn_id=TURN,
        tool_call_id=ToolCallId("call-1"),
        title="write a file",
        opened_at=5,
    )


def answer(answer_id: str = "a", *, by: str = "ann") -> Answer:
    content = PermissionAnswer(decision="approved")
    return Answer(request_id=REQUEST, answer_id=answer_id, content=content, answered_by=by)


def ledger(message: str, *, attempt: int = 1, cost: int | None = 7) -> LedgerEntry:
    return LedgerEntry(
        message_id=MessageId(message),
        attempt=attempt,
        model="m",
        input_tokens=1,
        output_tokens=None,
        cache_read_tokens=0,
        cost_microdollars=cost,
        time=9,
    )


MANY_MICRODOLLARS = 1_000_000_000


def call(message: str, *, session_cap: int | None = None) -> Ask:
    """A model call that asks for a dollar."""
    return Ask(
        message_id=MessageId(message),
        attempt=1,
        turn_id=TURN,
        model="m",
        root=KEY.session,
        input_cost=0,
        output_rate=1_000_000_000,
        most_tokens=1_000,
        session_cap=session_cap,
    )


async def create(
    store: Store,
    key: Key = KEY,
    *,
    host: str | None = None,
    tools: tuple[str, ...] = (),
    model: str | None = None,
    title: str | None = None,
    parent: SessionId | None = None,
    made_from: SessionId | None = None,
) -> Outcome:
    new = NewSession(created_at=1, host=host, tools=tools, model=model, parent=parent, made_from=made_from)
    return await store.commit(Unit(key=key, fence=None, events=(started(key),), creates=new, title=title))


async def send(
    store: Store,
    message: str,
    *,
    key: Key = KEY,
    text: str = "hello",
    limit: int = 10,
    only_if_idle: bool = False,
    stop_first: str | None = None,
) -> Accepted | Refused:
    return await store.put(
        key,
        Message(message_id=MessageId(message), text=text),
        item_key=message,
        queue_limit=limit,
        only_if_idle=only_if_idle,
        stop_first=stop_first,
    )


async def stop(
    store: Store,
    stop_id: str = "stop",
    *,
    keep_queued: bool = False,
    meant_for: TurnId | None = None,
    key: Key = KEY,
) -> Accepted | Refused:
    item = Stop(stop_id=stop_id, keep_queued=keep_queued, meant_for=meant_for)
    return await store.put(key, item, item_key=stop_id, queue_limit=10)


async def rewind(store: Store, rewind_id: str, *, key: Key = KEY) -> Accepted | Refused:
    return await store.put(key, Rewind(rewind_id=rewind_id, kept=Position(1)), item_key=rewind_id, queue_limit=10)


async def reply(
    store: Store, reply: Answer | None = None, *, key: Key = KEY, grants: NewGrants | None = None
) -> Accepted | Refused:
    said = reply or answer()
    return await store.put(key, said, item_key=f"answer:{said.request_id}", queue_limit=10, grants=grants)


async def hold(store: Store, key: Key = KEY) -> Lease:
    """Claim a session that has a message."""
    claims = await store.claim(limit=MANY)
    return next(claim.lease for claim in claims if claim.lease.key == key)


async def running(store: Store, key: Key = KEY) -> Lease:
    """Create and claim a session whose turn runs: its first message is promoted."""
    await create(store, key)
    await send(store, "first", key=key)
    lease = await hold(store, key)
    began = Unit(
        key=key,
        fence=lease.fence,
        events=(event(TurnStarted(turn_id=TURN)), said("hello")),
        promotes=(Promotion(1, "idle"),),
        status="running",
        turn_id=TURN,
    )
    assert isinstance(await store.commit(began), Committed)
    return lease


async def asking(store: Store, key: Key = KEY) -> Lease:
    """Create and claim a session whose turn waits for a permission."""
    lease = await running(store, key)
    opened = Unit(key=key, fence=lease.fence, opens=(request(),), status="waiting", turn_id=TURN)
    assert isinstance(await store.commit(opened), Committed)
    return lease


def accepted(outcome: Accepted | Refused) -> Accepted:
    assert isinstance(outcome, Accepted), outcome
    return outcome


def refused(outcome: Accepted | Refused | None) -> str:
    assert isinstance(outcome, Refused), outcome
    return outcome.code


def committed(outcome: Outcome) -> Committed:
    assert isinstance(outcome, Committed), outcome
    return outcome


def keys_of(items: tuple[InboxItem, ...]) -> list[str]:
    return [item.key for item in items]


async def until_claimed(store: Store) -> list[Claim]:
    """Claim repeatedly until a session can be claimed, for tests that wait for an expiry."""
    async with asyncio.timeout(20):
        while True:
            if claims := await store.claim(limit=MANY):
                return claims
