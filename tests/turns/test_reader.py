"""A reader sees the same however it reads: live, from any cursor, with lost, repeated or late hints."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from holdfast.events import message, turn
from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Position, SessionId, TurnId
from holdfast.live.live import Delta, Grown, Hint, Lost
from holdfast.live.local import LocalLive
from holdfast.models.model import TextDelta
from holdfast.server.errors import NotFound
from holdfast.server.reader import Reader, Reading
from holdfast.session.actions import Append
from holdfast.store.store import Cursor
from holdfast.turns.answer_buffer import AnswerBuffer
from tests.turns.recording import KEY, Read, Recording, counted, recording, step_started, writes

pytestmark = pytest.mark.anyio


def reader(found: Recording, cursor: Cursor | None = None) -> Reader:
    return Reader(found.store, found.live, KEY, cursor)


async def rest(found: Recording, cursor: Cursor | None = None) -> list[Reading]:
    return [reading async for reading in reader(found, cursor).until_now()]


@pytest.mark.parametrize("seed", range(6))
async def test_reading_to_any_cursor_and_then_from_it_equals_reading_everything(tmp_path: Path, seed: int) -> None:
    """Also while a message is in flight: after every write, from every cursor so far."""
    async with recording(tmp_path) as found:
        watcher, seen = reader(found), list[Reading]()
        cursors = [watcher.cursor]
        async for _ in writes(found, Random(seed)):
            async for reading in watcher.until_now():
                seen.append(reading)
                cursors.append(watcher.cursor)
            whole = Read().take(seen)
            for k, cursor in enumerate(cursors):
                assert Read().take([*seen[:k], *await rest(found, cursor)]) == whole
        assert Read().take(seen) == Read().take(await rest(found))
        check_messages(Read().take(seen))


def check_messages(read: Read) -> None:
    """Check that the deltas of each message add up to its blocks."""
    for event in read.events:
        if isinstance(event.body, message.AssistantMessage):
            for number, block in enumerate(event.body.blocks):
                text = block.arguments if isinstance(block, message.ToolCallBlock) else block.text
                assert read.blocks.get((event.body.message_id, number), b"").decode() == text


async def test_a_cursor_may_stand_at_any_byte_of_a_message(tmp_path: Path) -> None:
    words = "aé𝄞\u2028z"
    size = len(words.encode())
    async with recording(tmp_path) as found:
        started = [turn.TurnStarted(turn_id=TurnId("t")), step_started(1, MessageId("m"))]
        await found.held.commit(Append(events=list(started)))
        answer = AnswerBuffer(MessageId("m"), 1, counted("c"), lambda: 0.0)
        answer.take([TextDelta(words)])
        await found.held.commit_segments(answer.take_segments())
        head = (await found.operations.session(KEY)).head
        await bytes_follow(found, head, words)
        whole = message.AssistantMessage(message_id=MessageId("m"), blocks=answer.blocks())
        await found.held.commit(Append(events=[whole], drops_segments=True))
        await bytes_follow(found, head, words)
        assert [type(reading) for reading in await rest(found, Cursor(head, MessageId("m"), 0, size))] == [Event]


async def bytes_follow(found: Recording, head: Position, words: str) -> None:
    data = words.encode()
    for offset in range(len(data)):
        deltas = [r for r in await rest(found, Cursor(head, MessageId("m"), 0, offset)) if isinstance(r, Delta)]
        start = len(data[:offset].decode(errors="ignore").encode())
        assert [(delta.offset, delta.text) for delta in deltas] == [(start, data[start:].decode())]


class Careless(LocalLive):
    """Randomly drops, repeats and delays hints."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._late: list[Hint] = []
        self.mischief = 0

    def publish(self, key: Key, hint: Hint) -> None:
        what = self._chance.randrange(5)
        self.mischief += what < 3
        match what:
            case 0:
                pass
            case 1:
                super().publish(key, hint)
                super().publish(key, hint)
            case 2:
                self._late.append(hint)
            case _:
                super().publish(key, hint)
        if self._late and self._chance.random() < 0.3:
            super().publish(key, self._late.pop(self._chance.randrange(len(self._late))))


@pytest.mark.parametrize("subscribes", ["itself", "before"])
@pytest.mark.parametrize("seed", range(20))
async def test_lost_repeated_or_late_hints_do_not_change_what_a_reader_sees(
    tmp_path: Path, seed: int, subscribes: str
) -> None:
    chance = Random(seed)
    live = Careless(chance)
    async with recording(tmp_path, live) as found:
        read = Read()
        heard = live.subscribe(KEY) if subscribes == "before" else None
        following = asyncio.create_task(
            until_the_turn_ends(found.operations.read(KEY, Cursor(), heard_since=heard), read)
        )
        async for _ in writes(found, chance, messages=6):
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
        live.lose_all()
        await asyncio.wait_for(following, 20)
        assert live.mischief
        assert read == Read().take(await rest(found))
        check_messages(read)


async def until_the_turn_ends(reading: Reader, read: Read) -> None:
    async for found in reading.follow():
        read.take([found])
        if isinstance(found, Event) and isinstance(found.body, turn.TurnEnded):
            return


@pytest.mark.parametrize("seed", range(5))
async def test_a_reader_that_gets_every_hint_need_not_query_the_store(tmp_path: Path, seed: int) -> None:
    """Otherwise a stream would cost a query for every delta."""
    async with recording(tmp_path) as found:
        watcher = reader(found)
        subscription = found.live.subscribe(KEY)
        read = Read().take([reading async for reading in watcher.until_now()])
        async for _ in writes(found, Random(seed)):
            pass
        ended = False
        while not ended:
            readings = watcher._from_hint(await asyncio.wait_for(subscription.next(), 5))
            assert readings is not None, "a hint that continues the last one was rejected"
            read.take(readings)
            ended = any(isinstance(found, Event) and isinstance(found.body, turn.TurnEnded) for found in readings)
        subscription.close()
        assert read == Read().take(await rest(found))


async def test_a_reader_that_fell_behind_catches_up_from_the_store(tmp_path: Path) -> None:
    async with recording(tmp_path) as found:
        following = reader(found).follow()
        read = Read().take([await anext(following)])
        for number in range(1_100):
            await found.operations.rename(KEY, f"Title {number}")
        async for reading in following:
            read.take([reading])
            if isinstance(reading, Event) and getattr(reading.body, "title", "") == "Title 1099":
                break
        await following.aclose()
        assert read == Read().take(await rest(found))
        assert not found.live.listening()


async def test_a_reader_of_a_session_that_is_deleted_gets_not_found(tmp_path: Path) -> None:
    async with recording(tmp_path) as found:
        following = reader(found).follow()
        await anext(following)
        await found.operations.delete(KEY)
        with pytest.raises(NotFound):
            async for _ in following:
                pass
        assert not found.live.listening()


async def test_a_session_that_never_existed_can_not_be_read(tmp_path: Path) -> None:
    async with recording(tmp_path) as found:
        stranger = Reader(found.store, found.live, Key(KEY.owner, SessionId("other")))
        with pytest.raises(NotFound):
            await anext(stranger.follow())
        assert not found.live.listening()


# The hints themselves


async def test_hints_arrive_in_order_and_only_at_their_session() -> None:
    live = LocalLive()
    mine, other = live.subscribe(KEY), live.subscribe(Key(KEY.owner, SessionId("x")))
    hints: list[Hint] = [Grown(Position(1), (0, 0), ()), Grown(Position(2), (0, 0), ())]
    for hint in hints:
        live.publish(KEY, hint)
    assert [await mine.next(), await mine.next()] == hints
    waiting = asyncio.create_task(other.next())
    live.lose_all()
    assert await waiting == Lost()
    mine.close()
    mine.close()
    other.close()
    assert not live.listening()


async def test_a_slow_subscriber_keeps_a_bounded_number_of_hints_and_learns_that_some_are_lost() -> None:
    live = LocalLive()
    slow = live.subscribe(KEY)
    for number in range(10_000):
        live.publish(KEY, Grown(Position(number), (0, 0), ()))
    assert len(slow._hints) <= 1_000
    assert await slow.next() == Lost()
