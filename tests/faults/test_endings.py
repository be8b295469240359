"""Every turn ends visibly, with its true cause, and with what was done until then."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import Key, SessionId
from holdfast.events.message import AssistantMessage, CallFailed, Noted, ReasoningBlock, ToolCallBlock
from holdfast.events.session import SessionError
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import Aborted, TurnEnded
from holdfast.models.info import UNKNOWN
from holdfast.models.model import Chunk, Finished, ModelRequest, ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta
from holdfast.models.scripted import Failure, FailureKind, Reply, ScriptedCall
from holdfast.models.server import ModelServer
from holdfast.protocol.stop import Stopped
from holdfast.server.errors import NotFound
from holdfast.session.model_step import CLOSING_LINE
from holdfast.store.clock import SystemClock
from holdfast.tools.tool import tool
from tests.faults.world import (
    Gate,
    bodies_of,
    call,
    comes_true,
    endings_of,
    model_said,
    patience,
    runtime_on,
    runtime_over_http,
    says,
    scripted,
    until,
    whole,
)

pytestmark = pytest.mark.anyio


@tool(permission="allow")
async def look() -> str:
    """Look around."""
    return "seen"


class LeapingClock(SystemClock):
    """A clock on which days pass at once."""

    leapt_seconds = 0

    def now_ms(self) -> int:
        return super().now_ms() + 1000 * self.leapt_seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt_seconds


# 19

THINKING = Reply(reasoning="Let me think about that.")
EMPTY = Reply()


@pytest.mark.parametrize("silence", [THINKING, EMPTY, Reply(text=" \n ")])
@pytest.mark.parametrize("after_tools", [False, True])
async def test_fault_19_a_finish_without_words_is_asked_for_some_and_then_closed_with_a_line(
    database: Path, silence: Reply, after_tools: bool
) -> None:
    replies = (call("look"), silence) if after_tools else (silence,)
    async with (
        ModelServer(says(*replies)) as server,
        patience(),
        runtime_over_http(database, server.url, tools=[look]) as runtime,
    ):
        session = await runtime.session()
        result = await session.run("Hello")
        assert (result.reason, result.text) == ("completed", CLOSING_LINE)
        assert [note.reason for note in await bodies_of(session, Noted)] == ["empty answer"]
        assert (await session.run("Go on")).reason == "completed"


async def test_fault_19_one_that_finds_words_when_asked_ends_with_them(database: Path) -> None:
    async with runtime_on(database, scripted(Reply(texts=("", "Here is what I did.")))) as runtime, patience():
        session = await runtime.session()
        result = await session.run("Hello")
        assert (result.reason, result.text) == ("completed", "Here is what I did.")


class Tireless:
    """A model that never stops calling tools, each time with other arguments, whatever it is told."""

    name = "tireless"
    reasoning_source = ""
    info = UNKNOWN

    def __init__(self) -> None:
        self.calls = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        self.calls += 1
        yield [ToolCallDelta(0, f'{{"number":{self.calls}}}', f"call_{self.calls}", "count")]
        yield [Finished("tool_calls")]


async def test_fault_19_a_model_that_only_calls_tools_ends_with_something_visible(database: Path) -> None:
    counted: list[int] = []

    @tool(permission="allow")
    async def count(number: int) -> str:
        counted.append(number)
        return str(number)

    model = Tireless()
    async with runtime_on(database, model, tools=[count], max_rounds=3) as runtime, patience():
        session = await runtime.session()
        result = await session.run("Hello")
        assert (result.reason, result.text) == ("completed", CLOSING_LINE)
        assert counted == [1, 2, 3], "the last call was to sum up; what it asked for instead was not run"
        assert model.calls == 4


class Unending:
    """A model whose answer never ends: it repeats one piece, each time as another tool call if it is one."""

    name = "unending"
    reasoning_source = "unending"
    info = UNKNOWN

    def __init__(self, piece: Chunk) -> None:
        self.pieces = 0
        self._piece = piece

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        while True:
            self.pieces += 1
            is_call = isinstance(self._piece, ToolCallDelta)
            yield [ToolCallDelta(self.pieces, "", f"call_{self.pieces}", "look") if is_call else self._piece]


@pytest.mark.parametrize(
    "piece", [TextDelta("word "), ReasoningDelta("hm, "), ReasoningEnd("sealed"), ToolCallDelta(0, "")], ids=repr
)
async def test_fault_19_an_answer_that_never_ends_is_cut(database: Path, piece: Chunk) -> None:
    model = Unending(piece)
    bounds: dict[str, Any] = {"max_answer_characters": 1_000, "max_calls_per_step": 1, "max_same_calls": 1}
    async with runtime_on(database, model, tools=[look], **bounds) as runtime, patience():
        session = await runtime.session()
        await session.run("Hello")
        first, *_ = await bodies_of(session, AssistantMessage)
        assert first.finish_reason == "length"
        kept = sum(len(str(block)) for block in first.blocks)
        assert 1_000 < kept < 1_000 * 20
        assert len(await endings_of(session)) == 1


async def test_fault_19_the_same_call_again_and_again_ends_with_a_clear_error(database: Path) -> None:
    async with runtime_on(database, scripted(call("look")), tools=[look], max_same_calls=2) as runtime, patience():
        session = await runtime.session()
        result = await session.run("Hello")
        assert (result.reason, result.error and result.error.code) == ("error", "repeated_call")


# 20


async def test_fault_20_an_error_seen_live_is_there_after_a_reload_and_once(database: Path) -> None:
    script = says(Reply(text="one two three", fail=Failure(kind="cut", after=2)))
    async with (
        ModelServer(script) as server,
        patience(),
        runtime_over_http(database, server.url, max_model_attempts=2) as runtime,
    ):
        session = await runtime.session()
        await session.send("Hello")
        live = []
        async for reading in session.events():
            live.append(reading)
            if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
                break
        reloaded = [reading async for reading in session.events(follow=False)]
        assert whole(live) == whole(reloaded)
    async with runtime_on(database) as restarted:
        later = [reading async for reading in restarted.open(session.id).events(follow=False)]
        assert whole(later) == whole(live)
        errors = await bodies_of(restarted.open(session.id), SessionError)
        assert [error.code for error in errors] == ["model_cut"]


# 21


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("unauthorized", "model_unauthorized", False),
        ("refused", "model_refused", False),
        ("rate_limited", "model_rate_limited", True),
        ("unavailable", "model_unavailable", True),
        ("malformed", "model_garbage", True),
        ("cut", "model_cut", True),
    ],
)
async def test_fault_21_the_reason_shown_for_a_provider_error_is_that_error(
    database: Path, kind: FailureKind, code: str, retryable: bool
) -> None:
    script = says(Reply(text="one two", fail=Failure(kind=kind)))
    async with (
        ModelServer(script) as server,
        patience(),
        runtime_over_http(database, server.url, max_model_attempts=2) as runtime,
    ):
        session = await runtime.session()
        result = await session.run("Hello")
        assert result.reason == "error"
        assert result.error is not None
        assert (result.error.code, result.error.retryable) == (code, retryable)
        assert result.error.message.rstrip().endswith((".", ")")), result.error.message
        failures = await bodies_of(session, CallFailed)
        assert len(failures) == (2 if retryable else 1), "retried only where it makes sense"


async def test_fault_21_a_stopped_turn_says_that_it_was_stopped_and_has_no_error(database: Path) -> None:
    gate = Gate(at=1)
    async with runtime_on(database, scripted(Reply(text="one two"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        sent = await session.send("Hello")
        await gate.reached.wait()
        stopped = await session.stop(stop_id="stop")
        result = await session.result_of(sent.message_id)
        assert (stopped.outcome, result.reason, result.error) == ("stopping", "stopped", None)
        assert [body.reason for body in await bodies_of(session, Aborted)] == ["user_initiated"]
        assert (await session.stop(stop_id="stop")).outcome == "stopped", "the same stop, read again"
        assert (await session.stop()).outcome == "nothing_running"


async def test_fault_21_a_stop_for_a_turn_that_has_ended_leaves_the_message_that_waits_for_the_next(
    database: Path,
) -> None:
    async with patience():
        async with runtime_on(database) as runtime:
            ended = await (await runtime.session("s")).run("Hello")
        async with runtime_on(database, work=False) as runtime:
            session = runtime.open("s")
            await session.send("From another person", message_id="theirs")
            late = await session.stop(turn_id=ended.turn_id)
            assert (late.outcome, late.returned) == ("turn_ended_before", ())
        async with runtime_on(database) as runtime:
            assert (await runtime.open("s").result_of("theirs")).reason == "completed"


async def test_fault_21_a_stop_that_has_nothing_to_stop_succeeds_when_the_storage_is_full_and_stores_nothing(
    database: Path,
) -> None:
    async with runtime_on(database, auth="keys", max_bytes_per_owner=5_000) as runtime, patience():
        session = await runtime.session("s")
        await session.send("Go", message_id="m")
        ended = await session.result_of("m")
        while (await runtime.store.stored(runtime.owner)).stored_bytes < 5_000:
            await runtime.operations.rename(session.key, "y" * 200)
        before = await runtime.store.stored(runtime.owner)
        assert (await session.stop()).outcome == "nothing_running"
        assert (await session.stop(stop_id="chosen")) == Stopped(stop_id="chosen", outcome="nothing_running")
        late = await session.stop(stop_id="late", turn_id=ended.turn_id)
        assert late.outcome == "turn_ended_before"
        assert await runtime.store.receipt(session.key, "stop:chosen") is None
        assert await runtime.store.stored(runtime.owner) == before
        with pytest.raises(NotFound):
            await runtime.operations.stop(Key(runtime.owner, SessionId("missing")))


async def test_fault_21_a_message_for_an_unusable_model_is_no_error_and_runs_with_another_model(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session(model="nobody/knows-this")
        await session.send("Hello", message_id="m")
        await comes_true(lambda: "There is no model 'nobody/knows-this'" in caplog.text)
        assert (await session.look()).waiting_messages == 1
        await runtime.operations.change_model(session.key, "scripted")
        assert (await session.result_of("m")).text == "Done."
        assert await bodies_of(session, SessionError) == []


# 22


async def test_fault_22_blocks_that_are_open_when_the_provider_fails_are_closed(database: Path) -> None:
    reply = Reply(
        reasoning="Let me look.",
        text="I will look.",
        tool_calls=(ScriptedCall("look", '{"where": "a long way off"}'),),
        fail=Failure(kind="cut", after=9, times=1),
    )
    async with (
        ModelServer(says(reply, Reply(text="Seen."))) as server,
        patience(),
        runtime_over_http(database, server.url, tools=[look]) as runtime,
    ):
        session = await runtime.session()
        assert (await session.run("Hello")).reason == "completed"
        cut = (await bodies_of(session, AssistantMessage))[0]
        assert cut.interrupted
        half = [block for block in cut.blocks if isinstance(block, ToolCallBlock)]
        assert [block.arguments for block in half] == ['{"where": "a']
        closed = [body for body in await bodies_of(session, ToolCompleted) if body.error == "interrupted"]
        assert [body.tool_call_id for body in closed] == [half[0].tool_call_id]
        assert any(isinstance(block, ReasoningBlock) for block in cut.blocks)


# 23


async def test_fault_23_what_was_done_and_shown_is_kept_when_the_retries_end(database: Path) -> None:
    replies = (call("look"), Reply(text="one two three", fail=Failure(kind="cut", after=2)))
    async with (
        ModelServer(says(*replies)) as server,
        patience(),
        runtime_over_http(database, server.url, tools=[look], max_model_attempts=3) as runtime,
    ):
        session = await runtime.session()
        result = await session.run("Hello")
        assert (result.reason, result.text) == ("error", "one two")
        assert await model_said(session) == ["", "one two", "one two", "one two"]
        assert [body.content for body in await bodies_of(session, ToolCompleted)] == ["seen"]
        after = await session.run("And now?")
        assert after.reason == "error"
        assert b"seen" in server.requests[-1], "the next turn knows what the failed one had found"


# 24


async def test_fault_24_no_watchdog_counts_while_a_tool_runs(database: Path) -> None:
    """The model's connection may be silent for a moment only; the tool takes several times as long."""
    silence = 0.1

    @tool(permission="allow")
    async def slow() -> str:
        await asyncio.sleep(4 * silence)
        return "at last"

    async with (
        ModelServer(says(call("slow"), Reply(text="After: {last_tool_result}"))) as server,
        patience(),
        runtime_over_http(database, server.url, tools=[slow], read_timeout_seconds=silence) as runtime,
    ):
        result = await (await runtime.session()).run("Hello")
        assert (result.reason, result.text) == ("completed", "After: at last")


async def test_fault_24_no_watchdog_counts_while_a_person_is_awaited(database: Path) -> None:
    """Ten days pass on every clock that the runtime has; then the answer comes, and the turn goes on."""
    clock = LeapingClock()
    model = scripted(call("ask_user", question="Which?"), Reply(text="After: {last_tool_result}"))
    async with runtime_on(database, model, clock=clock) as runtime, patience():
        session = await runtime.session()
        sent = await session.send("Hello", message_id="m")
        waiting = await session.result_of(sent.message_id)
        assert waiting.reason == "waiting"
        head = (await session.look()).head
        for _ in range(10):
            clock.leapt_seconds += 24 * 3600
            assert await runtime.worker.keeper.renew()
            assert await runtime.store.claim(limit=10) == []
        assert (await session.look()).head == head, "nothing happened to the turn"
        (request,) = await session.requests()
        await session.answer(request.id, "The blue one")
        assert (await until(session, lambda body: isinstance(body, TurnEnded))).body is not None
        assert (await model_said(session))[-1] == "After: User responded: The blue one"


async def test_fault_24_a_tool_that_waits_for_its_own_limit_is_the_only_thing_that_ends_it(database: Path) -> None:
    @tool(permission="allow", timeout_seconds=0.05)
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    async with (
        runtime_on(database, scripted(call("hangs"), Reply(text="Gave up.")), tools=[hangs]) as runtime,
        patience(),
    ):
        session = await runtime.session()
        assert (await session.run("Hello")).text == "Gave up."
        (ended,) = await bodies_of(session, ToolCompleted)
        assert (ended.error, "0.05 seconds" in ended.content) == ("timeout", True)
        assert await endings_of(session) == ["completed"]
