"""Tools that ignore their cancellation: how long a timeout, a stop and the end of the process wait for them."""

import asyncio
import threading
from pathlib import Path
from typing import Self

import pytest

from holdfast import tool
from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply, ScriptedModel
from holdfast.tools.tool import Tool
from holdfast.turns import cancelled_tools
from tests.faults.world import (
    bodies_of,
    call,
    comes_true,
    endings_of,
    patience,
    runtime_on,
    scripted,
    told,
    until,
    until_idle,
)
from tests.rows import row_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelled_tools, "GIVE_UP_SECONDS", 0.05)


class Deaf:
    """A tool that ignores its cancellation and runs until the test lets it end."""

    def __init__(self) -> None:
        self.started, self.cancelled, self.may_end, self.ended = (asyncio.Event() for _ in range(4))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_end.set()

    def tool(self, *, timeout_seconds: float | None = None) -> Tool:
        @tool(permission="allow", timeout_seconds=timeout_seconds, after_crash="repeat")
        async def deaf() -> str:
            self.started.set()
            while not self.may_end.is_set():
                try:
                    await self.may_end.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
            self.ended.set()
            return "late"

        return deaf


async def test_a_tool_that_swallows_its_cancellation_times_out_and_the_turn_continues(database: Path) -> None:
    deaf = Deaf()
    model = scripted(call("deaf"), Reply(text="It took too long."))
    async with patience(), runtime_on(database, model, tools=[deaf.tool(timeout_seconds=0.02)]) as runtime, deaf:
        session = await runtime.session("s")
        turn = await session.run("go")
        assert (turn.reason, turn.text) == ("completed", "It took too long.")
        assert not deaf.ended.is_set()
        (result,) = await bodies_of(session, ToolCompleted)
        assert (result.success, result.error) == (False, "timeout")
        assert result.content == (
            "deaf did not finish within 0.02 seconds and was given up, but it is still running. "
            "It may still take effect."
        )
        deaf.may_end.set()
        await deaf.ended.wait()
        assert len(await bodies_of(session, ToolCompleted)) == 1, "its late result is not recorded"


async def test_a_tool_in_a_thread_that_can_not_be_stopped_times_out_and_the_turn_continues(database: Path) -> None:
    may_end = threading.Event()

    @tool(permission="allow", timeout_seconds=0.02)
    def deaf() -> None:
        may_end.wait(30)

    model = scripted(call("deaf"), Reply(text="It took too long."))
    async with patience(), runtime_on(database, model, tools=[deaf]) as runtime:
        session = await runtime.session("s")
        assert (await session.run("go")).text == "It took too long."
        (result,) = await bodies_of(session, ToolCompleted)
        assert "it is still running" in result.content
        may_end.set()


@pytest.mark.parametrize("ending", ["stopped", "timed out"])
async def test_a_session_is_held_until_its_cancelled_tool_has_ended(database: Path, ending: str) -> None:
    """After an earlier release, another process could start the same work beside the tool."""
    deaf = Deaf()
    limit = 0.02 if ending == "timed out" else None
    model = scripted(call("deaf"), Reply(text="Well."))
    async with (
        patience(),
        runtime_on(database, work=False) as reader,
        runtime_on(database, model, tools=[deaf.tool(timeout_seconds=limit)], cancelled_tool_seconds=10) as runtime,
        deaf,
    ):
        session = await runtime.session("s")
        await session.send("go", message_id="m")
        await deaf.started.wait()
        if ending == "stopped":
            await session.stop()
        await session.result_of("m")
        await deaf.cancelled.wait()
        assert (await row_of(reader.open("s"))).held_by is not None
        assert runtime.worker.sessions_held == 1
        deaf.may_end.set()
        await comes_true(lambda: runtime.worker.sessions_held == 0)
        assert (await row_of(session)).held_by is None


async def test_a_message_is_answered_at_once_while_the_session_waits_for_a_cancelled_tool(database: Path) -> None:
    deaf = Deaf()
    model = ScriptedModel(told(go=(call("deaf"),), hello=(Reply(text="Here I am."),)))
    async with (
        patience(),
        runtime_on(database, model, tools=[deaf.tool()], cancelled_tool_seconds=10) as runtime,
        deaf,
    ):
        session = await runtime.session("s")
        await session.send("go")
        await deaf.started.wait()
        await session.stop()
        await until_idle(session)
        assert (await session.run("hello")).text == "Here I am."
        assert not deaf.ended.is_set()


async def test_a_stopping_process_hands_its_session_over_once_the_cancelled_tool_has_ended(database: Path) -> None:
    deaf = Deaf()
    model = scripted(call("deaf"), Reply(text="Done by another."))
    async with (
        patience(),
        runtime_on(database, model, tools=[deaf.tool()], cancelled_tool_seconds=10) as stopping,
        deaf,
    ):
        session = await stopping.session("s")
        await session.send("go", message_id="m")
        await deaf.started.wait()
        stopped = asyncio.create_task(stopping.worker.stop(grace_seconds=0))
        await deaf.cancelled.wait()
        assert (await row_of(session)).held_by is not None
        assert not stopped.done()
        deaf.may_end.set()
        await stopped
        assert deaf.ended.is_set()
        assert (await row_of(session)).held_by is None, "released while the stopped process still exists"
        async with runtime_on(database, model, tools=[deaf.tool()]) as other:
            assert (await other.open("s").result_of("m")).text == "Done by another."
        assert [body.attempt for body in await bodies_of(session, ToolAttempted)] == [1, 2]


async def test_a_worker_that_is_stopped_twice_has_stopped_when_either_call_returns(database: Path) -> None:
    deaf = Deaf()
    model = scripted(call("deaf"), Reply(text="Done by another."))
    async with (
        patience(),
        runtime_on(database, model, tools=[deaf.tool()], cancelled_tool_seconds=10) as stopping,
        deaf,
    ):
        session = await stopping.session("s")
        await session.send("go", message_id="m")
        await deaf.started.wait()
        first = asyncio.create_task(stopping.worker.stop(grace_seconds=3600))
        again = asyncio.create_task(stopping.worker.stop(grace_seconds=0))
        await deaf.cancelled.wait()
        deaf.may_end.set()
        await again
        assert deaf.ended.is_set()
        assert (await row_of(session)).held_by is None
        await first
        await stopping.worker.stop(grace_seconds=3600)


async def test_a_worker_stop_whose_caller_is_cancelled_continues_without_grace(database: Path) -> None:
    deaf = Deaf()
    async with (
        patience(),
        runtime_on(database, scripted(call("deaf")), tools=[deaf.tool()], cancelled_tool_seconds=10) as stopping,
        deaf,
    ):
        session = await stopping.session("s")
        await session.send("go", message_id="m")
        await deaf.started.wait()
        stopped = asyncio.create_task(stopping.worker.stop(grace_seconds=3600))
        await asyncio.sleep(0)  # Let the stop begin.
        stopped.cancel()
        await deaf.cancelled.wait()
        deaf.may_end.set()
        await stopping.worker.stop(grace_seconds=3600)
        assert (await row_of(session)).held_by is None


async def test_a_process_stops_and_hands_over_even_if_a_tool_never_ends(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = Deaf()
    async with (
        patience(),
        runtime_on(database, scripted(call("deaf")), tools=[deaf.tool()], cancelled_tool_seconds=0.05) as stopping,
        deaf,
    ):
        session = await stopping.session("s")
        await session.send("go")
        await deaf.started.wait()
        await stopping.worker.stop(grace_seconds=0)
        assert not deaf.ended.is_set()
        assert (await row_of(session)).held_by is None
        assert caplog.text.count("tool deaf was cancelled and still runs") == 1
        deaf.may_end.set()
        await deaf.ended.wait()


async def test_a_stop_ends_the_turn_even_if_the_tool_ignores_its_cancellation(database: Path) -> None:
    deaf = Deaf()
    async with (
        patience(),
        runtime_on(database, scripted(call("deaf")), tools=[deaf.tool()], cancelled_tool_seconds=10) as runtime,
        deaf,
    ):
        session = await runtime.session("s")
        await session.send("go")
        await deaf.started.wait()
        await session.stop()
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert await endings_of(session) == ["stopped"]
        assert not deaf.ended.is_set()
