"""Fault 33: for every cut k of a stream, what was told up to k and what a reader is told who comes back then are
together the whole. Here every moment of one eventful turn is tried, in one process; over the wire, a few."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import pytest

from holdfast import Runtime, tool
from holdfast.events.ids import Position, RequestId
from holdfast.events.session import ClientTool
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.server.ai_sdk.leg import Leg
from holdfast.server.ai_sdk.message import UiMessage, conversation
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.streams import leg_chunks, message_leg_chunks, whole_turn_chunks
from holdfast.server.embedded.session import Session
from holdfast.server.log_lookup import find_turn
from holdfast.server.log_tail import last_turn
from tests.wire.ai_sdk.logs import reduced

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS: Final = 60.0

LOCATE = ClientTool(name="locate", description="Where the person is.", parameters={"type": "object"})

SCRIPT = Script(
    (
        Rule(
            (
                Reply(
                    reasoning="Let me think of it.",
                    text="First I add the numbers.",
                    tool_calls=(ScriptedCall("add", {"a": 2, "b": 3}),),
                    fail=Failure(kind="cut", after=5, times=1),
                ),
                Reply(
                    text="Now I write it down, and ask where you are.",
                    tool_calls=(
                        ScriptedCall("create", {"path": "notes.txt", "file_text": "Grüße"}),
                        ScriptedCall("locate", {}),
                    ),
                ),
                Reply(tool_calls=(ScriptedCall("ask_user", {"question": "Which colour?"}),)),
                Reply(text="All is done: {last_tool_result} ✓"),
            ),
            "everything",
        ),
    )
)


@tool(permission="allow")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Reading:
    """One answer, read to its end."""

    def __init__(self, told: AsyncGenerator[list[UiChunk], None]) -> None:
        self.chunks: list[UiChunk] = []
        self._has_begun = asyncio.Event()
        self._task = asyncio.create_task(self._read(told))

    async def _read(self, told: AsyncGenerator[list[UiChunk], None]) -> None:
        async with aclosing(told):
            async for batch in told:
                self.chunks += batch
                self._has_begun.set()

    async def until_begun(self) -> None:
        """It has read all that there was."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._has_begun.wait()

    async def until_over(self) -> list[UiChunk]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._task
        return self.chunks


class Stage:
    """A session whose model stands still before every piece of its answers, until a reader who came at that moment has
    read all that there is."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.session = session
        self.key = session.key
        self.operations = runtime.operations
        self.readers: list[Reading] = []

    async def add_reader(self) -> None:
        turn = await last_turn(self.operations.store, self.key)
        assert turn is not None
        reader = Reading(whole_turn_chunks(self.operations, self.key, 6, turn.started))
        await reader.until_begun()
        self.readers.append(reader)

    async def first_leg(self, text: str) -> Reading:
        head = (await self.session.look()).head
        sent = await self.session.send(text, message_id="user-1")
        leg = Leg(UiProjection())
        told = message_leg_chunks(self.operations, self.key, leg, sent.message_id, item_key=sent.item_key, head=head)
        return Reading(told)

    async def next_leg(self) -> Reading:
        """The next leg of a turn that waits. All requests will have been answered."""
        turn = await last_turn(self.operations.store, self.key)
        assert turn is not None
        row = await self.session.look()
        found = await find_turn(self.operations.store, self.key, row.head, turn.turn_id)
        assert found is not None
        after, request_ids = found.waits[0]
        leg = Leg(UiProjection(), after=after, answered=frozenset(request_ids))
        return Reading(leg_chunks(self.operations, self.key, leg, found.started))

    async def request(self, kind: str) -> RequestId:
        return next(found.id for found in await self.session.requests() if found.kind == kind)

    async def check_readers(self, legs: list[UiChunk]) -> None:
        """All who came so far were told what the legs told, and no more."""
        expected = reduced(legs)
        await self.add_reader()
        for reader in self.readers:
            assert reduced(await reader.until_over()) == expected
        self.readers.clear()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage, None]:
    made: list[Stage] = []

    async def gate(index: int) -> None:
        await made[0].add_reader()

    environ = {"HOLDFAST_BACKOFF_SECONDS": "0", "HOLDFAST_MAX_BACKOFF_SECONDS": "0", "HOME": str(tmp_path)}
    model = ScriptedModel(SCRIPT, gate=gate)
    async with Runtime(database=tmp_path / "cuts.db", model=model, tools=[add], environ=environ) as runtime:
        session = await runtime.session(working_directory=str(tmp_path), client_tools=(LOCATE,))
        made.append(Stage(runtime, session))
        yield made[0]


async def test_a_reader_that_joins_at_any_moment_gets_the_same_message(stage: Stage) -> None:
    told = list(await (await stage.first_leg("Do everything")).until_over())
    assert len(stage.readers) > 20
    await stage.check_readers(told)

    second = await stage.next_leg()
    await stage.session.send("And hurry up", message_id="user-2")
    await stage.session.approve(await stage.request("permission"))
    await stage.session.give_result(await stage.request("client_tool"), '{"city":"Ulm"}')
    told += await second.until_over()
    await stage.check_readers(told)

    third = await stage.next_leg()
    await stage.session.answer(await stage.request("question"), "blue")
    told += await third.until_over()
    await stage.check_readers(told)

    message = reduced(told)
    loaded = conversation(await stage.operations.store.events_after(stage.key, Position(0), limit=1_000))
    assert [found.id for found in loaded] == ["user-1", message.id]
    assert without_decisions(loaded[1]) == message
    assert [part["type"] for part in message.parts] == [
        *("step-start", "reasoning", "data-interrupted", "reasoning", "text", "tool-add"),
        *("step-start", "text", "tool-create", "tool-locate"),
        *("data-follow-up", "step-start", "tool-ask_user"),
        *("step-start", "text"),
    ]
    assert message.parts[-1]["text"] == "All is done: User responded: blue ✓"


def without_decisions(message: UiMessage) -> UiMessage:
    """As a client of release 6 has it, which is never told how an approval was decided."""
    for part in message.parts:
        if "approval" in part:
            part["approval"] = {"id": part["approval"]["id"]}
    return message
