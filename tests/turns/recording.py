"""Writes a session step by step on a real store, and collects what its readers see."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random

from holdfast.events import message, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Owner, SessionId, TurnId
from holdfast.live.live import Delta, Live
from holdfast.live.local import LocalLive
from holdfast.models.model import Chunk, ReasoningDelta, TextDelta, ToolCallDelta
from holdfast.server.operations import Operations, SessionOptions
from holdfast.server.reader import Reading
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.endings import sealed
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.turns.answer_buffer import AnswerBuffer
from holdfast.turns.held_session import HeldSession
from holdfast.turns.load import load_claimed

KEY = Key(Owner("me"), SessionId("s"))
WORDS = ("Hello", " world", "é", "𝄞𝄞", "\u2028", "x" * 40, "漢字")


class Recording:
    """A held session and the operations on it."""

    def __init__(self, store: SqliteStore, live: Live, held: HeldSession, operations: Operations) -> None:
        self.store = store
        self.live = live
        self.held = held
        self.operations = operations


def counted(prefix: str) -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"


@asynccontextmanager
async def recording(path: Path, live: Live | None = None) -> AsyncIterator[Recording]:
    """A held session with one message in its inbox."""
    live = live or LocalLive()
    store = await SqliteStore.open(path / "test.db", node="here")
    try:
        clock, bounds = SystemClock(), Bounds()
        operations = Operations(
            store=store,
            live=live,
            clock=clock,
            bounds=bounds,
            node="here",
            host="here",
            producer="test",
            new_id=counted("op"),
        )
        await operations.create(KEY.owner, SessionOptions(title="T"), KEY.session)
        await operations.send(KEY, "Hi")
        (claim,) = await store.claim(limit=1)
        found = await load_claimed(store, claim, max_claims=bounds.max_claims_without_progress)
        assert found
        held = HeldSession(
            store=store,
            live=live,
            clock=clock,
            bounds=bounds,
            new_id=counted("id"),
            lease=claim.lease,
            folded=found,
        )
        yield Recording(store, live, held, operations)
    finally:
        await store.close()


async def writes(found: Recording, chance: Random, messages: int = 3) -> AsyncIterator[None]:
    """Write a random turn of a few messages; yields after every write."""
    turn_id, step = TurnId("t"), 1
    held = found.held
    message_id = MessageId("m1")
    await held.commit(Append(events=[turn.TurnStarted(turn_id=turn_id), step_started(step, message_id)]))
    yield
    for number in range(1, messages + 1):
        answer = AnswerBuffer(message_id, 1, counted(f"call{number}-"), lambda: 0.0)
        for chunks in batches(chance):
            answer.take(chunks)
            if chance.random() < 0.7 and (segments := answer.take_segments()):
                await held.commit_segments(segments)
                yield
            if chance.random() < 0.1:
                await found.operations.rename(KEY, f"Title {chance.random()}")
                yield
        message_id = MessageId(f"m{number + 1}")
        if held.shown() and chance.random() < 0.3:
            cut = sealed(answer.message_id, held.shown(), message_id, "crash")
            await held.commit(Append(events=cut, drops_segments=True))
        else:
            whole = message.AssistantMessage(message_id=answer.message_id, blocks=answer.blocks())
            step += 1
            following: list[Body] = [turn.StepEnded(turn_id=turn_id, step=step - 1), step_started(step, message_id)]
            await held.commit(Append(events=[whole, *following], drops_segments=True))
        yield
    ended: list[Body] = [
        turn.StepEnded(turn_id=turn_id, step=step),
        turn.TurnEnded(turn_id=turn_id, reason="completed"),
    ]
    await held.commit(Append(events=ended))
    yield


def step_started(step: int, message_id: MessageId) -> Body:
    return turn.StepStarted(turn_id=TurnId("t"), step=step, message_id=message_id)


def batches(chance: Random) -> list[list[Chunk]]:
    """Random chunks of a model: reasoning, text and tool calls, possibly interleaved."""
    return [[piece(chance) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 6))]


def piece(chance: Random) -> Chunk:
    words = chance.choice(WORDS)
    match chance.randrange(6):
        case 0:
            return ReasoningDelta(words)
        case 1 | 2 | 3:
            return TextDelta(words)
        case _:
            arguments = chance.choice(["", "{", '"a": 1', "}", '{"é": "𝄞"}'])
            named = chance.random() < 0.7
            return ToolCallDelta(chance.randrange(3), arguments, chance.choice(["", "c1", "c2"]), "view" * named)


class Read:
    """The result of reading a session, compared by its events and every message's blocks, byte for byte."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.blocks: dict[tuple[MessageId, int], bytes] = {}

    def take(self, readings: Iterable[Reading]) -> "Read":
        for reading in readings:
            match reading:
                case Event():
                    self.events.append(reading)
                case Delta():
                    place = (reading.message_id, reading.block)
                    read = self.blocks.get(place, b"")
                    assert reading.offset == len(read), f"a gap or a repetition in {place}"
                    self.blocks[place] = read + reading.text.encode()
                case _:
                    pass
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Read) and (self.events, self.said()) == (other.events, other.said())

    def said(self) -> dict[tuple[MessageId, int], bytes]:
        return {place: data for place, data in self.blocks.items() if data}

    __hash__ = None  # type: ignore[assignment]
