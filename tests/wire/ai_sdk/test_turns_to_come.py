"""Answers about turns that have not begun, that never will, or that had begun before their message came."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.events.ids import MessageId, Position
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.ai_sdk.chunks import UiChunk, plain
from holdfast.server.ai_sdk.leg import Leg
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.streams import frames, message_leg_chunks, whole_turn_chunks
from holdfast.server.embedded.session import Session
from holdfast.server.log_tail import last_turn
from tests.wire.ai_sdk.logs import types

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """Nobody runs the sessions here: what is sent waits."""
    async with Runtime(database=tmp_path / "later.db", work=False, environ={"HOME": str(tmp_path)}) as made:
        yield made


class Told:
    """The chunks of a stream as they arrive."""

    def __init__(self, told: AsyncGenerator[list[UiChunk], None]) -> None:
        self.chunks: list[UiChunk] = []
        self._has_begun = asyncio.Event()
        self._reading = asyncio.create_task(self._read(told))

    async def _read(self, told: AsyncGenerator[list[UiChunk], None]) -> None:
        async with aclosing(told):
            async for batch in told:
                self.chunks += batch
                self._has_begun.set()

    async def until_begun(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._has_begun.wait()

    async def until_over(self) -> list[str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._reading
        return types(map(plain, self.chunks))


def told_of(runtime: Runtime, session: Session, message_id: str, item_key: str, head: Position) -> Told:
    leg = Leg(UiProjection())
    operations = runtime.operations
    return Told(message_leg_chunks(operations, session.key, leg, MessageId(message_id), item_key=item_key, head=head))


async def test_a_message_that_is_taken_out_before_its_turn_comes_back(runtime: Runtime) -> None:
    session = await runtime.session()
    head = (await session.look()).head
    sent = await session.send("I wait", message_id="user-1")
    told = told_of(runtime, session, "user-1", sent.item_key, head)
    await runtime.operations.remove_queued(session.key, MessageId("user-1"))
    assert await told.until_over() == ["data-returned"]
    waited = {"messageId": "user-1", "text": "I wait"}
    assert plain(told.chunks[0])["data"] == {"texts": ["I wait"], "messages": [waited]}


async def test_a_stream_that_waits_for_a_turn_ends_when_its_message_is_removed(runtime: Runtime) -> None:
    session = await runtime.session()
    await session.send("I wait", message_id="user-1")
    row = await session.look()
    told = Told(whole_turn_chunks(runtime.operations, session.key, 6, Position(row.head + 1)))
    await told.until_begun()
    await runtime.operations.rename(session.key, "A record is no turn")
    await runtime.operations.remove_queued(session.key, MessageId("user-1"))
    assert await told.until_over() == []


async def test_a_stream_that_waits_for_a_turn_reports_the_deletion_of_its_session(runtime: Runtime) -> None:
    session = await runtime.session()
    await session.send("I wait", message_id="user-1")
    row = await session.look()
    sent = frames(whole_turn_chunks(runtime.operations, session.key, 6, Position(row.head + 1)))
    await session.delete()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert [frame async for frame in sent] == [
            b'data: {"type":"error","errorText":"This session was deleted."}\n\n',
            b"data: [DONE]\n\n",
        ]


async def test_the_stream_of_a_message_that_joined_a_turn_begins_with_that_turn(tmp_path: Path) -> None:
    """It was accepted when nothing ran, and a turn that something else had started took it in."""
    reached, released = asyncio.Event(), asyncio.Event()

    async def gate(piece: int) -> None:
        if piece == 1:
            reached.set()
            await released.wait()

    model = ScriptedModel(Script((Rule((Reply(text="One two three."),)),)), gate=gate)
    async with Runtime(database=tmp_path / "joined.db", model=model, environ={"HOME": str(tmp_path)}) as runtime:
        session = await runtime.session()
        head = (await session.look()).head
        await session.send("First", message_id="user-1")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reached.wait()
        sent = await session.send("Second", message_id="user-2")
        told = told_of(runtime, session, "user-2", sent.item_key, head)
        released.set()
        assert (await told.until_over())[:2] == ["start", "start-step"]
        assert "data-follow-up" in types(map(plain, told.chunks))


async def test_a_replay_goes_on_when_the_answer_is_accepted_but_not_yet_promoted(tmp_path: Path) -> None:
    """The wait is in the log, and the answer is only in the inbox."""
    asks = Reply(tool_calls=(ScriptedCall("ask_user", {"question": "Well?"}),))
    model = ScriptedModel(Script((Rule((asks, Reply(text="Thanks."))),)))
    place: dict[str, Any] = {"database": tmp_path / "answered.db", "environ": {"HOME": str(tmp_path)}}
    async with Runtime(model=model, **place) as runtime:
        name = (session := await runtime.session()).id
        (request,) = (await session.run("Ask me")).requests
    async with Runtime(work=False, **place) as idle:
        session = idle.open(name)
        await session.answer(request.id, "yes")
        turn = await last_turn(idle.store, session.key)
        assert turn is not None
        told = Told(whole_turn_chunks(idle.operations, session.key, 6, turn.started))
        await told.until_begun()
        async with Runtime(model=model, **place):
            found = await told.until_over()
    assert found.count("finish") == 1
    assert found[-8:-4] == ["tool-output-available", "finish-step", "start-step", "text-start"]


async def test_a_turn_whose_end_was_taken_back_is_over(tmp_path: Path) -> None:
    """A rewind may go back to the middle of a turn: that one is neither running nor to be waited for."""
    model = ScriptedModel(Script((Rule((Reply(text="Well."),)),)))
    async with Runtime(database=tmp_path / "rewound.db", model=model, environ={"HOME": str(tmp_path)}) as runtime:
        session = await runtime.session()
        await session.run("Go on")
        found = await last_turn(runtime.store, session.key)
        assert found is not None
        assert found.first_step is not None
        await runtime.operations.rewind(session.key, found.first_step)
        rewound = await last_turn(runtime.store, session.key)
        assert rewound is not None
        assert (rewound.turn_id, rewound.ended_at is None) == (found.turn_id, False)
