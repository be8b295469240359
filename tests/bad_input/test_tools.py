"""Tools that raise, hang, or return far too much or bytes: a result that the model can read, and a turn that ends."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply, ScriptedCall, ScriptedModel
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import Tool, ToolResult, tool
from tests.faults.world import bodies_of, call, patience, runtime_on, scripted, told

pytestmark = pytest.mark.anyio


def raising(error: BaseException) -> Tool:
    async def broken() -> str:
        raise error

    return tool(permission="allow", after_crash="repeat")(broken)


def raising_in_a_thread(error: BaseException) -> Tool:
    def broken() -> str:
        raise error

    return tool(permission="allow", after_crash="repeat")(broken)


def giving(value: Any) -> Tool:
    async def broken() -> Any:
        return value

    return tool(permission="allow", name="broken")(broken)


async def result_of(database: Path, broken: Tool, **settings: Any) -> ToolCompleted:
    """The result of one call; afterwards the same session answers another message."""
    model = ScriptedModel(told(use=(call("broken"), Reply(text="Noted.")), now=(Reply(text="Here."),)))
    async with runtime_on(database, model, tools=[broken], **settings) as runtime, patience():
        session = await runtime.session()
        used = await session.run("use it")
        assert (used.reason, used.text) == ("completed", "Noted.")
        assert (await session.run("now")).text == "Here."
        (result,) = await bodies_of(session, ToolCompleted)
        return result


class OwnError(Exception):
    """With a text that can't be encoded."""


@pytest.mark.parametrize("make", [raising, raising_in_a_thread])
@pytest.mark.parametrize(
    "error",
    [
        ToolFailure("The door is locked"),
        KeyError("door"),
        OwnError("half \ud800 NUL \0"),
        TimeoutError("the door's own patience"),
        RecursionError("too deep"),
        MemoryError(),
        SystemExit(3),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_tool_that_raises_gives_the_model_its_reason(database: Path, make: Any, error: BaseException) -> None:
    result = await result_of(database, make(error))
    assert (result.success, result.error) == (False, "failed")
    told_why = result.content
    assert "within" not in told_why, "nothing timed out here"
    if isinstance(error, ToolFailure | KeyError | TimeoutError):
        assert str(error) in told_why


async def test_a_tool_that_hangs_is_given_up_and_the_turn_goes_on(database: Path) -> None:
    @tool(permission="allow")
    async def broken() -> None:
        await asyncio.Event().wait()

    result = await result_of(database, broken, tool_timeout_seconds=0.1, cancelled_tool_seconds=0.1)
    assert (result.success, result.error) == (False, "timeout")
    assert "0.1 seconds" in result.content


async def test_a_tool_that_hangs_in_a_thread_is_given_up_and_the_turn_goes_on(database: Path) -> None:
    release = threading.Event()

    @tool(permission="allow")
    def broken() -> None:
        release.wait(60)

    try:
        result = await result_of(database, broken, tool_timeout_seconds=0.1, cancelled_tool_seconds=0.1)
    finally:
        release.set()
    assert (result.success, result.error) == (False, "timeout")
    assert "may still take effect" in result.content


async def test_five_megabytes_are_kept_whole_and_shown_in_part(database: Path) -> None:
    result = await result_of(database, giving("é" * 5_000_000))
    assert result.success
    assert len(result.content) == 5_000_000
    assert result.preview is not None
    assert len(result.preview) < 81_000


async def test_more_than_can_be_kept_is_an_error_that_says_so(database: Path) -> None:
    result = await result_of(database, giving("x" * 20_000_000))
    assert (result.success, result.error) == (False, "too_large")
    assert "20,000,000" in result.content


@pytest.mark.parametrize("value", [b"\xff\x00\xfe" * 1000, bytes(5_000_000)])
async def test_bytes_that_are_no_text_are_kept_beside_a_sentence(database: Path, value: bytes) -> None:
    result = await result_of(database, giving(value))
    assert result.success
    if result.binary is not None:
        assert result.binary == value
        assert "binary" in result.content
    else:
        assert result.content == value.decode()


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, None]},
        ToolResult(content="no", success=False),
        object(),
        {1: object()},
        float("nan"),
        lambda: None,
        sys,
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
async def test_any_value_that_a_tool_returns_becomes_a_result(database: Path, value: Any) -> None:
    result = await result_of(database, giving(value))
    assert result.content


@pytest.mark.parametrize(
    "arguments",
    ["", "not { json", "[]", "null", '{"unknown": 1}', '{"number": "seven"}', "[" * 100_000, '{"number": 1e400}'],
    ids=range(8),
)
async def test_arguments_that_do_not_fit_are_explained_to_the_model(database: Path, arguments: str) -> None:
    @tool(permission="allow")
    async def add(number: int) -> int:
        return number + 1

    reply = Reply(tool_calls=(ScriptedCall("add", arguments),))
    async with runtime_on(database, scripted(reply, Reply(text="I see.")), tools=[add]) as runtime, patience():
        session = await runtime.session()
        assert (await session.run("Hello")).text == "I see."
        (result,) = await bodies_of(session, ToolCompleted)
        assert (result.success, result.error) == (False, "invalid_arguments")
        assert len(result.content) < 1000


async def test_a_tool_that_is_not_there_is_named_with_those_that_are(database: Path) -> None:
    async with runtime_on(database, scripted(call("missing"), Reply(text="I see."))) as runtime, patience():
        session = await runtime.session()
        assert (await session.run("Hello")).text == "I see."
        (result,) = await bodies_of(session, ToolCompleted)
        assert result.error == "unknown_tool"
        assert "view" in result.content


async def test_a_permission_check_that_raises_fails_its_call_and_nothing_else(database: Path) -> None:
    def asks(arguments: Any, directory: Path | None) -> None:
        raise KeyError("nobody thought of this")

    @tool(permission=asks)
    async def broken() -> str:
        return "never"

    result = await result_of(database, broken)
    assert not result.success
    assert "nobody thought of this" in result.content
