"""Turns that are stopped, that wait, or whose tools misbehave: no shown text or cost is lost, and no caller hangs."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast import tool
from holdfast.events.ids import Key, SessionId
from holdfast.events.inbox import InboxItem, Stop
from holdfast.events.message import AssistantMessage
from holdfast.events.request import PermissionCompleted
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnEnded, TurnWaiting
from holdfast.live.live import Delta
from holdfast.models.info import UNKNOWN
from holdfast.models.model import Chunk, Finished, ModelError, ModelRequest, TextDelta
from holdfast.models.scripted import Reply, ScriptedCall
from holdfast.server.errors import Invalid
from holdfast.store.log_pages import SMALL_BYTES
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Unit
from holdfast.turns import cancelled_tools
from tests.faults.world import (
    Gate,
    bodies_of,
    call,
    comes_true,
    endings_of,
    log_of,
    patience,
    runtime_on,
    scripted,
    text_of,
    until,
    until_idle,
)
from tests.workers.troubled_store import TroubledStore, store_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


async def test_shown_text_stays_even_if_the_stop_came_during_its_commit(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.app.SqliteStore", TroubledStore)
    shown, stop_heard = Gate(), asyncio.Event()

    async def answer_late(unit: Unit) -> None:
        if unit.segments:
            await shown()

    async def note_stop(items: tuple[InboxItem, ...]) -> None:
        if any(isinstance(item.item, Stop) for item in items):
            stop_heard.set()  # The model call is cancelled before any other task runs.

    async with (
        patience(),
        runtime_on(database, scripted(Reply(text="Hello there."))) as runtime,
        runtime_on(database, work=False) as reader,
    ):
        store_of(runtime).after.update(commit=answer_late, waiting_items=note_stop)
        session = await runtime.session("s")
        await session.send("hello")
        await shown.reached.wait()
        readings = [reading async for reading in reader.open("s").events(follow=False)]
        assert [reading.text for reading in readings if isinstance(reading, Delta)] == ["Hello"]
        await session.stop()
        await stop_heard.wait()
        shown.open()
        await until_idle(session)
        (said,) = await bodies_of(session, AssistantMessage)
        assert (text_of(said), said.interrupted) == ("Hello", True)
        assert await endings_of(session) == ["stopped"]


async def test_a_message_that_was_removed_earlier_is_reported_as_removed(database: Path) -> None:
    async with patience(), runtime_on(database, work=False) as runtime:
        session = await runtime.session("s")
        await session.send("one", message_id="m")
        await session.stop()
        assert (await session.result_of("m")).reason == "removed"
        assert (await session.run("one", message_id="m")).reason == "removed"


async def test_a_repeated_stop_returns_the_same_removed_texts(database: Path) -> None:
    async with patience(), runtime_on(database, work=False) as runtime:
        session = await runtime.session("s")
        await session.send("gone before", message_id="m0")
        await session.stop()
        await session.send("one")
        await session.send("two")
        stopped = await session.stop(stop_id="stop")
        assert stopped.returned == ("one", "two")
        await session.send("after")
        assert await session.stop(stop_id="stop") == stopped
        assert len(await session.queue()) == 1, "and what came after it is left alone"


@pytest.mark.parametrize("name", ["openai/a\0b", "two\nlines", "", "x" * 201])
async def test_an_invalid_model_name_is_refused(database: Path, name: str) -> None:
    async with patience(), runtime_on(database, work=False) as runtime:
        with pytest.raises(Invalid) as refused:
            await runtime.session("made", model=name)
        assert refused.value.code == "model_invalid"
        await runtime.session("s")
        with pytest.raises(Invalid) as refused:
            await runtime.operations.change_model(Key(runtime.owner, SessionId("s")), name)
        assert refused.value.code == "model_invalid"
        assert [found.id async for found in runtime.sessions()] == ["s"]


async def test_a_model_call_that_was_stopped_before_its_first_words_is_in_the_ledger(database: Path) -> None:
    model_waits = Gate()
    async with patience(), runtime_on(database, scripted(Reply(text="Hello."), gate=model_waits)) as runtime:
        session = await runtime.session("s")
        await session.send("hello")
        await model_waits.reached.wait()
        await session.stop()
        await until_idle(session)
        (entry,) = await runtime.operations.usage(runtime.owner)
        assert (entry.model, entry.attempt) == ("scripted", 1)
        assert (entry.input_tokens, entry.output_tokens) == (None, None), "unknown, not nothing"


async def test_a_stop_does_not_wait_for_a_tool_that_ignores_it_and_its_late_result_is_not_recorded(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelled_tools, "GIVE_UP_SECONDS", 0.05)
    started, may_end = asyncio.Event(), asyncio.Event()
    running: list[asyncio.Task[object]] = []

    @tool(permission="allow")
    async def stubborn() -> str:
        task = asyncio.current_task()
        assert task is not None
        running.append(task)
        started.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                pass  # This tool ignores its cancellation.
        return "late"

    async with patience(), runtime_on(database, scripted(call("stubborn")), tools=[stubborn]) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        await started.wait()
        try:
            await session.stop()
            await until_idle(session)
            assert await endings_of(session) == ["stopped"]
            before = await log_of(session)
            assert not running[0].done(), "it still runs"
        finally:
            may_end.set()
        await asyncio.wait(running)
        assert await log_of(session) == before
        assert "late" not in [done.content for done in await bodies_of(session, ToolCompleted)]


class StubbornModel:
    """A model that swallows its cancellation, and continues to answer when the test lets it."""

    name = "stubborn"
    reasoning_source = ""
    info = UNKNOWN

    def __init__(self, error: ModelError | None = None) -> None:
        self._error = error
        self.started, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[object] | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        self.task = asyncio.current_task()
        yield [TextDelta("Hello")]
        self.started.set()
        while not self.may_go_on.is_set():
            try:
                await self.may_go_on.wait()
            except asyncio.CancelledError:
                pass  # This model ignores its cancellation.
        if self._error is not None:
            raise self._error
        yield [TextDelta(" again.")]
        yield [Finished("stop")]


@pytest.mark.parametrize("error", [None, ModelError("model_cut", "The answer was cut.", retryable=True)])
async def test_a_model_that_ignores_a_stop_writes_nothing_into_the_ended_turn(
    database: Path, monkeypatch: pytest.MonkeyPatch, error: ModelError | None
) -> None:
    monkeypatch.setattr(cancelled_tools, "GIVE_UP_SECONDS", 0.05)
    model = StubbornModel(error)
    async with patience(), runtime_on(database, model) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        await model.started.wait()
        try:
            await session.stop()
            await until_idle(session)
            assert await endings_of(session) == ["stopped"]
            before = await log_of(session)
        finally:
            model.may_go_on.set()
        assert model.task is not None
        await asyncio.wait([model.task])
        assert model.task.cancelled(), "it was heeded after all, and nothing failed"
        readings = [reading async for reading in session.events(follow=False)]
        assert [reading.text for reading in readings if isinstance(reading, Delta)] == ["Hello"]
        assert await log_of(session) == before


async def test_a_tool_that_returns_a_result_when_cancelled_is_still_stopped(database: Path) -> None:
    started = asyncio.Event()

    @tool(permission="allow")
    async def dutiful() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done after all"

    async with patience(), runtime_on(database, scripted(call("dutiful")), tools=[dutiful]) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        await started.wait()
        await session.stop()
        await until_idle(session)
        (completed,) = await bodies_of(session, ToolCompleted)
        assert not completed.success
        assert completed.content != "done after all"
        assert await endings_of(session) == ["stopped"]


async def test_run_on_a_session_that_waits_for_an_approval_returns_the_open_request(database: Path) -> None:
    @tool
    async def risky() -> str:
        return "done"

    async with patience(), runtime_on(database, scripted(call("risky")), tools=[risky]) as runtime:
        session = await runtime.session("s")
        first = await session.run("one")
        assert first.reason == "waiting"
        assert len(first.requests) == 1
        second = await session.run("two")
        assert (second.reason, second.requests) == ("waiting", first.requests)


async def test_a_tool_that_raises_keyboard_interrupt_has_only_failed(database: Path) -> None:
    @tool(permission="allow")
    def bad() -> str:
        raise KeyboardInterrupt

    model = scripted(call("bad"), Reply(text="A pity."))
    async with patience(), runtime_on(database, model, tools=[bad]) as runtime:
        session = await runtime.session("s")
        turn = await session.run("go")
        assert (turn.reason, turn.text) == ("completed", "A pity.")
        (completed,) = await bodies_of(session, ToolCompleted)
        assert (completed.success, completed.error) == (False, "failed")
        assert "KeyboardInterrupt" in completed.content


@pytest.mark.parametrize("decision", ["cancelled", "approved"])
async def test_a_turn_that_can_not_be_loaded_leaves_no_request_and_no_call_open(
    database: Path, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    """The turn is ended from the rows beside its log, which include its requests. An accepted answer counts."""

    @tool(permission="ask")
    async def effect() -> str:
        raise AssertionError("nobody allowed it")

    async def fail(*given: object, **more: object) -> None:
        raise MemoryError

    asks = Reply(text="x" * SMALL_BYTES, tool_calls=(ScriptedCall("effect", {}),))
    model = scripted(asks, Reply(text="Hi."))
    async with patience(), runtime_on(database, model, tools=[effect], max_claims_without_progress=1) as runtime:
        session = await runtime.session("s")
        await session.send("Do it.")
        await until(session, lambda body: isinstance(body, TurnWaiting))
        (request,) = await session.requests()
        await comes_true(lambda: runtime.worker.sessions_held == 0)
        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "load", fail)
            broken.setattr(SqliteStore, "turn_start", fail)
            if decision == "approved":
                await session.approve(request.id)
            else:
                await session.send("Well?")
            await until(session, lambda body: isinstance(body, TurnEnded))
        assert await session.requests() == ()
        (completed,) = await bodies_of(session, PermissionCompleted)
        assert (completed.request_id, completed.decision) == (request.id, decision)
        (result,) = await bodies_of(session, ToolCompleted)
        assert result.error == "interrupted"


async def test_the_turn_after_one_that_could_not_be_loaded_runs_with_the_whole_history(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that ended the earlier turn lacks the history."""
    heard: list[str] = []

    class Listening:
        name = "listening"
        reasoning_source = ""
        info = UNKNOWN

        async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
            heard.append(" ".join(str(said) for said in request.messages))
            if len(heard) == 2:
                await asyncio.Event().wait()
            yield [TextDelta("first words " + "x" * SMALL_BYTES), Finished("stop")]

    def fails_once(name: str) -> None:
        works = getattr(SqliteStore, name)

        async def fail(*given: object, **more: object) -> None:
            monkeypatch.setattr(SqliteStore, name, works)
            raise MemoryError

        monkeypatch.setattr(SqliteStore, name, fail)

    async with patience():
        async with runtime_on(database, Listening()) as first:
            session = await first.session("s")
            await session.send("Hello", message_id="m1")
            assert (await session.result_of("m1")).reason == "completed"
            await session.send("Go on", message_id="m2")
            await comes_true(lambda: len(heard) == 2)
        fails_once("load")
        fails_once("turn_start")
        async with runtime_on(database, Listening(), max_claims_without_progress=1, work=False) as sender:
            session = sender.open("s")
            await session.send("And now?", message_id="m3", delivery="enqueue")
        async with runtime_on(database, Listening(), max_claims_without_progress=1) as second:
            session = second.open("s")
            assert (await session.result_of("m2")).reason == "error"
            assert (await session.result_of("m3")).reason == "completed"
    assert "first words" in heard[-1]
