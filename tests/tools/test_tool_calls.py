"""Running a tool: whatever it gives back, raises or never finishes becomes one recorded result."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events import message, tool, turn
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, ToolCallId, TurnId
from holdfast.events.session import SessionInfo
from holdfast.live.live import Progress
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.state import ToolCall
from holdfast.store.sqlite import rows
from holdfast.store.text_index import bring_up_to_date
from holdfast.tools.errors import ToolFailure
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool, ToolContext, ToolResult
from holdfast.tools.tool import tool as make_tool
from holdfast.tools.view import view
from holdfast.turns.tool_call import facts_of, run_tool
from tests.turns.recording import KEY, Recording, recording, step_started

pytestmark = pytest.mark.anyio


def nothing() -> frozenset[str]:
    """No call is running."""
    return frozenset()


BOUNDS = Bounds(max_tool_result_bytes=6_000_000, max_tool_characters=1_000, tool_timeout_seconds=30)


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Recording]:
    async with recording(tmp_path) as found:
        found.held.bounds = BOUNDS
        yield found


async def call_of(session: Recording, name: str, arguments: str = "{}") -> ToolCall:
    """The model asked for this."""
    block = message.ToolCallBlock(tool_call_id=ToolCallId("c1"), name=name, arguments=arguments)
    said = message.AssistantMessage(message_id=MessageId("m"), blocks=(block,))
    started = [turn.TurnStarted(turn_id=TurnId("t")), step_started(1, MessageId("m")), said]
    await session.held.commit(Append(events=list(started)))
    reply = session.held.state.reply()
    assert reply
    return reply.calls[0]


async def completed(session: Recording) -> list[tool.ToolCompleted]:
    events = await session.store.events_after(KEY, session.held.state.head.__class__(0), limit=100)
    return [event.body for event in events if isinstance(event.body, tool.ToolCompleted)]


async def outcome(session: Recording, found: Tool, arguments: str = "{}") -> tool.ToolCompleted:
    await run_tool(session.held, await call_of(session, found.name, arguments), found)
    (result,) = await completed(session)
    return result


def giving(value: Any) -> Tool:
    @make_tool(name="gives")
    def gives() -> Any:
        return value

    return gives


class Point(msgspec.Struct):
    x: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("", ""),
        (None, "Done."),
        (7, "7"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(1), '{"x":1}'),
        (b"bytes", "bytes"),
        ("\0\u2028é", "\0\u2028é"),
        ("half \ud800", "half \ufffd"),
        ({"half": "\ud800"}, '{"half":"\ufffd"}'),
        (ToolResult(content="all right"), "all right"),
    ],
    ids=ascii,
)
async def test_the_return_value_of_a_tool_is_its_result(session: Recording, value: Any, content: str) -> None:
    result = await outcome(session, giving(value))
    assert (result.content, result.success, result.error, result.preview) == (content, True, None, None)


async def test_a_result_may_say_that_it_failed(session: Recording) -> None:
    result = await outcome(session, giving(ToolResult(content="no", success=False, binary=b"\xff")))
    assert (result.content, result.success, result.error, result.binary) == ("no", False, "failed", b"\xff")


async def test_binary_data_is_kept_and_described(session: Recording) -> None:
    result = await outcome(session, giving(b"\x89PNG\xff" * 1000))
    assert result.binary == b"\x89PNG\xff" * 1000
    assert "5,000 bytes of binary data" in result.content


async def test_five_megabytes_are_kept_whole_and_previewed(session: Recording) -> None:
    text = "0123456789" * 500_000
    result = await outcome(session, giving(text))
    assert result.content == text
    assert result.preview is not None
    assert len(result.preview) < 2_000
    reply = session.held.state.reply()
    assert reply
    assert reply.calls[0].result == result.preview


async def test_more_than_can_be_kept_is_an_error(session: Recording) -> None:
    result = await outcome(session, giving("x" * 6_000_001))
    assert (result.error, result.success) == ("too_large", False)
    assert "6,000,001 bytes" in result.content


@pytest.mark.parametrize("value", [object(), {1j}, lambda: None], ids=["object", "set", "function"])
async def test_a_value_that_can_not_be_written_down_is_an_error(session: Recording, value: Any) -> None:
    result = await outcome(session, giving(value))
    assert (result.error, result.success) == ("failed", False)
    assert result.content.startswith("gives failed: TypeError: ")


class Hopeless(Exception):
    """Even its text is broken."""

    def __str__(self) -> str:
        return "half \ud800"


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ToolFailure("The door is locked."), "The door is locked."),
        (KeyError("key"), "breaks failed: KeyError: 'key'"),
        (TimeoutError("the server is slow"), "breaks failed: TimeoutError: the server is slow"),
        (asyncio.CancelledError(), "breaks failed: something that it waited for was cancelled."),
        (SystemExit(3), "breaks failed: SystemExit: 3"),
        (Hopeless(), "breaks failed: Hopeless: half \ufffd"),
        (RecursionError(), "breaks failed: RecursionError: "),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_any_exception_of_a_tool_becomes_a_result_with_its_cause(
    session: Recording, error: BaseException, content: str, in_thread: bool
) -> None:
    @make_tool(name="breaks")
    async def breaks() -> None:
        raise error

    @make_tool(name="breaks")
    def breaks_in_a_thread() -> None:
        raise error

    result = await outcome(session, breaks_in_a_thread if in_thread else breaks)
    assert (result.content, result.error, result.success) == (content, "failed", False)


async def test_a_tool_that_hangs_is_given_up_and_told_to_stop(session: Recording) -> None:
    told = threading.Event()

    @make_tool(timeout_seconds=0.05)
    def hangs(context: ToolContext) -> None:
        while not context.cancelled:
            threading.Event().wait(0.01)
        told.set()

    result = await outcome(session, hangs)
    assert (result.error, result.success) == ("timeout", False)
    assert result.content == "hangs did not finish within 0.05 seconds and was given up. It may still take effect."
    assert await asyncio.to_thread(told.wait, 10)


async def test_an_async_tool_that_hangs_is_cancelled(session: Recording) -> None:
    ended: list[str] = []

    @make_tool(timeout_seconds=0.05)
    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    assert (await outcome(session, hangs)).error == "timeout"
    assert ended == ["cancelled"]


async def test_no_tool_may_take_longer_than_the_session_allows(session: Recording) -> None:
    session.held.bounds = Bounds(tool_timeout_seconds=0.05)

    @make_tool(timeout_seconds=3600)
    async def hangs() -> None:
        await asyncio.Event().wait()

    assert "within 0.05 seconds" in (await outcome(session, hangs)).content


async def test_a_stopped_tool_is_cancelled_and_records_nothing(session: Recording) -> None:
    started, told = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @make_tool
    def waits(context: ToolContext) -> None:
        loop.call_soon_threadsafe(started.set)
        while not context.cancelled:
            threading.Event().wait(0.01)
        told.set()

    running = asyncio.create_task(run_tool(session.held, await call_of(session, "waits"), waits))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(told.wait, 10)
    assert await completed(session) == []
    call = session.held.state.reply()
    assert call
    assert call.calls[0].attempts == 1


async def test_a_tool_knows_who_calls_it_and_may_say_how_far_it_is(session: Recording, tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    hints = session.live.subscribe(KEY)

    @make_tool
    def looks(context: ToolContext) -> str:
        seen.append(context)
        context.progress("half of it")
        return "ok"

    session.held.state.working_directory = str(tmp_path)
    await outcome(session, looks)
    (context,) = seen
    assert (context.session_id, context.tool_call_id, context.key, context.attempt) == ("s", "c1", "m:c1", 1)
    assert context.working_directory == tmp_path
    while not isinstance(hint := await asyncio.wait_for(hints.next(), 5), Progress):
        pass
    assert hint == Progress(ToolCallId("c1"), "half of it")
    hints.close()


async def test_a_tool_may_read_what_an_earlier_call_gave(session: Recording) -> None:
    @make_tool
    async def reads(context: ToolContext) -> str:
        return f"{await context.read_output('c0')} {await context.read_output('none')}"

    call = await call_of(session, "reads")
    earlier = tool.ToolCompleted(tool_call_id=ToolCallId("c0"), success=True, content="the whole", preview="…")
    await session.held.commit(Append(events=[earlier]))
    await run_tool(session.held, call, reads)
    assert (await completed(session))[-1].content == "the whole None"


async def test_an_earlier_result_is_found_by_an_index_however_long_the_log_is(
    session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str | None] = []

    @make_tool
    async def reads(context: ToolContext) -> None:
        got.append(await context.read_output("c0"))

    call = await call_of(session, "reads")
    earlier = tool.ToolCompleted(tool_call_id=ToolCallId("c0"), success=True, content="the whole", preview="…")
    await session.held.commit(Append(events=[earlier]))
    place = session.held.state.head
    for _ in range(3):
        await session.held.commit(Append(events=[SessionInfo(info_type="note", message="x")] * 300))
        await session.held.until_snapshot_kept()  # It brings the index up to date too, beside the next commits.
    await bring_up_to_date(session.store, KEY)
    indexed = session.held.state.head
    read: list[int] = []
    events_after = rows.events_after

    def read_and_note(*given: Any) -> tuple[Event, ...]:
        found = events_after(*given)
        read.extend(event.position for event in found)
        return found

    monkeypatch.setattr(rows, "events_after", read_and_note)
    await run_tool(session.held, call, reads)
    monkeypatch.undo()
    assert got == ["the whole"]
    assert read == [*range(indexed + 1, session.held.state.head), place], "the events of this call, and the result"


# A dry run


def with_effect(ran: list[str], simulate: Callable[[Any], Any] | None) -> Tool:
    @make_tool(simulate=simulate)
    def deploys(to: str) -> str:
        ran.append(to)
        return "really"

    return deploys


@pytest.mark.parametrize(
    ("simulate", "content", "error"),
    [
        (None, "(dry run: deploys was not run; suppose that it succeeded)", None),
        (lambda arguments: {"deployed": arguments.to}, '{"deployed":"prod"}', None),
        (lambda arguments: 1 / 0, "deploys failed: ZeroDivisionError: division by zero", "failed"),
        (lambda arguments: object(), "deploys failed: TypeError: Encoding objects of type object", "failed"),
    ],
)
async def test_a_dry_run_does_nothing_and_says_so(
    session: Recording, simulate: Callable[[Any], Any] | None, content: str, error: str | None
) -> None:
    session.held.state.dry_run = True
    ran: list[str] = []
    result = await outcome(session, with_effect(ran, simulate), '{"to": "prod"}')
    assert ran == []
    assert result.simulated
    assert result.content.startswith(content)
    assert result.error == error


async def test_a_dry_run_really_reads(session: Recording, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("here")
    session.held.state.dry_run = True
    session.held.state.working_directory = str(tmp_path)
    result = await outcome(session, view, '{"path": "a.txt"}')
    assert (result.content, result.simulated) == ("1. here", False)


# What the tools say before a call runs


def asking(error: Exception) -> Tool:
    def asks(arguments: Any, directory: Path | None) -> None:
        raise error

    @make_tool(name="asks", permission=asks)
    def never() -> None: ...

    return never


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("nobody", "{}", "unknown_tool", "Tool 'nobody' does not exist. Available tools that can be called are "),
        ("view", "{", "invalid_arguments", "The arguments of view are not valid: "),
        ("view", '{"path": "a\\u0000b"}', "invalid_arguments", "This session has no working directory"),
        ("asks", "{}", "invalid_arguments", "asks can't take these arguments: KeyError: 'broken'"),
    ],
)
async def test_a_call_that_can_not_run_is_known_before_it_is_started(
    session: Recording, name: str, arguments: str, code: str, said: str
) -> None:
    await call_of(session, name, arguments)
    facts = await facts_of(
        session.held.state, Registry([view, asking(KeyError("broken"))]), running=nothing, max_calls=64
    )
    found = facts[ToolCallId("c1")]
    assert (found.where, found.error_code) == ("nowhere", code)
    assert found.error.startswith(said)


async def test_more_calls_than_one_answer_may_make_are_refused(session: Recording) -> None:
    await call_of(session, "view")
    facts = await facts_of(session.held.state, Registry([view]), running=nothing, max_calls=0)
    found = facts[ToolCallId("c1")]
    assert (found.where, found.error) == ("nowhere", "Only 0 tool calls can be made at once.")


async def test_a_tool_that_the_session_did_not_choose_does_not_exist_for_it(session: Recording) -> None:
    session.held.state.tools = ("create",)
    await call_of(session, "view", '{"path": "a"}')
    facts = await facts_of(session.held.state, Registry([view]), running=nothing, max_calls=64)
    found = facts[ToolCallId("c1")]
    assert found.error_code == "unknown_tool"
