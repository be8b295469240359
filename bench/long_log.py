"""A session with a long log and a short history, as a rewind leaves it: thousands of turns, of which the model is
still sent the first two. Every event of it is one that a holder writes, and is written under a lease."""

import uuid
from collections.abc import Sequence

from holdfast.events import message, session, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, TurnId
from holdfast.events.inbox import Message
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, Key, Lease, NewSession, Promotion, Unit

KEPT_TURNS = 2

TURNS_IN_A_UNIT = 20


async def write(store: SqliteStore, key: Key, *, events: int = 0) -> None:
    """An idle session that the model is sent two turns of, after at least so many events. It has no snapshot."""
    kept = KEPT_TURNS * len(_turn(0))
    dropped = max(0, -(-(events - kept) // len(_turn(0))))
    turns = [_turn(number) for number in range(KEPT_TURNS + dropped)]
    await write_turns(store, key, turns, last=[session.Truncated(kept=Position(1 + kept))] if dropped else [])


async def write_turns(store: SqliteStore, key: Key, turns: Sequence[list[Body]], *, last: Sequence[Body] = ()) -> None:
    """An idle session with these turns, and one more unit with what is to come last."""
    await _create(store, key)
    lease = await _claim(store, key)
    for first in range(0, len(turns), TURNS_IN_A_UNIT):
        bodies = [body for said in turns[first : first + TURNS_IN_A_UNIT] for body in said]
        await _commit(store, lease, bodies, promotes=first == 0)
    if last:
        await _commit(store, lease, list(last))
    assert await store.release(lease, seen_tail=1, how="done")


async def _create(store: SqliteStore, key: Key) -> None:
    started = session.SessionStarted(session_id=key.session, producer="bench", start_time=1, tools=())
    unit = Unit(key=key, fence=None, events=(_event(started),), creates=NewSession(created_at=1))
    assert isinstance(await store.commit(unit), Committed)


async def _claim(store: SqliteStore, key: Key) -> Lease:
    sent = Message(message_id=MessageId("first"), text="Question")
    await store.put(key, sent, item_key="message:first", queue_limit=1)
    (claim,) = await store.claim(limit=1)
    return claim.lease


async def _commit(store: SqliteStore, lease: Lease, bodies: list[Body], *, promotes: bool = False) -> None:
    unit = Unit(
        key=lease.key,
        fence=lease.fence,
        events=tuple(map(_event, bodies)),
        promotes=(Promotion(1, "idle"),) if promotes else (),
        status="idle",
        title="A long session",
    )
    assert isinstance(await store.commit(unit), Committed)


def _turn(number: int) -> list[Body]:
    return turn_of(number, f"Answer {number}: " + "some words that were said " * 8)


def turn_of(number: int, answer: str) -> list[Body]:
    """A question and its answer, as the log has them."""
    turn_id, message_id = TurnId(f"turn-{number}"), MessageId(f"message-{number}")
    text = message.TextBlock(text=answer)
    return [
        turn.TurnStarted(turn_id=turn_id),
        message.UserMessage(
            message_id=MessageId(f"asked-{number}"), turn_id=turn_id, content=f"Question {number}", delivery="idle"
        ),
        turn.StepStarted(turn_id=turn_id, step=1, message_id=message_id),
        message.AssistantMessage(message_id=message_id, blocks=(text,), model="bench", finish_reason="stop"),
        message.Usage(message_id=message_id, model="bench", input_tokens=100, output_tokens=50),
        turn.StepEnded(turn_id=turn_id, step=1),
        turn.TurnEnded(turn_id=turn_id, reason="completed"),
    ]


def _event(body: Body) -> Event:
    return Event(Position(0), EventId(str(uuid.uuid4())), 1, body)
