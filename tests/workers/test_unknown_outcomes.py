"""Slow writes and writes with an unknown outcome: nothing is decided on a state that may be behind the log."""

import asyncio
from pathlib import Path

import pytest

from holdfast import tool
from holdfast.events.ids import Key, Position, SessionId
from holdfast.events.inbox import InboxItem, Stop
from holdfast.events.message import AssistantMessage
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply, ScriptedCall
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Claim, Unit
from holdfast.turns import cancelled_tools
from tests.faults.world import (
    Gate,
    bodies_of,
    comes_true,
    endings_of,
    model_said,
    patience,
    runtime_on,
    scripted,
    until_idle,
)
from tests.workers.troubled_store import TroubledStore, store_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("holdfast.app.SqliteStore", TroubledStore)
    return tmp_path / "holdfast.db"


def ends_turn(unit: Unit) -> bool:
    return any(isinstance(event.body, TurnEnded) for event in unit.events)


def unheard() -> StoreUnavailable:
    return StoreUnavailable("store_failed", "The connection was lost.")


async def test_a_stop_waits_for_a_segment_that_is_being_committed_however_long_that_takes(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancelled_tools, "GIVE_UP_SECONDS", 0.05)
    written = Gate()
    under_way: list[Unit] = []
    ended_over: list[Unit] = []

    async def hold_up(unit: Unit) -> None:
        if ends_turn(unit):
            ended_over.extend(under_way)
        if unit.segments:
            under_way.append(unit)
            await written()
            under_way.clear()

    model = scripted(Reply(text="one two three four five six"))
    async with patience(), runtime_on(database, model) as runtime:
        store_of(runtime).before["commit"] = hold_up
        session = await runtime.session("s")
        await session.send("hello")
        await written.reached.wait()
        await session.stop()
        await comes_true(lambda: "goes on all the same" in caplog.text)
        written.open()
        await until_idle(session)
        assert ended_over == []
        assert await endings_of(session) == ["stopped"]
        (cut,) = await model_said(session)
        assert "one two three four five six".startswith(cut.strip())
        await session.run("again")
        assert len(await model_said(session)) == 2, "nothing of the first answer is taken for the second"


async def test_a_turn_does_not_end_twice_if_the_outcome_of_its_end_is_unknown_and_a_stop_came(
    database: Path,
) -> None:
    last, stop_heard, failed = Gate(), asyncio.Event(), asyncio.Event()

    async def hold_up(unit: Unit) -> None:
        if ends_turn(unit):
            await last()

    async def note_stop(items: tuple[InboxItem, ...]) -> None:
        if any(isinstance(item.item, Stop) for item in items):
            stop_heard.set()

    async def fail_once(unit: Unit) -> None:
        if ends_turn(unit) and not failed.is_set():
            failed.set()
            raise unheard()

    async with patience(), runtime_on(database, scripted(Reply(text="Hello."))) as runtime:
        store_of(runtime).before["commit"] = hold_up
        store_of(runtime).after.update(commit=fail_once, waiting_items=note_stop)
        session = await runtime.session("s")
        await session.send("hello")
        await last.reached.wait()
        await session.stop(stop_id="stop")
        await stop_heard.wait()
        last.open()
        await failed.wait()
        while (receipt := await session.stop(stop_id="stop")).outcome == "stopping":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert receipt.outcome == "turn_ended_before"
        assert await endings_of(session) == ["completed"]
        (said,) = await bodies_of(session, AssistantMessage)
        assert not said.interrupted


async def test_a_session_runs_even_if_the_outcome_of_its_claim_is_unknown(database: Path) -> None:
    """This process holds the session and lives, so no other process would ever run it."""
    failed = asyncio.Event()

    async def fail_once(claims: list[Claim]) -> None:
        if claims and not failed.is_set():
            failed.set()
            raise unheard()

    async with patience(), runtime_on(database) as runtime:
        store_of(runtime).after["claim"] = fail_once
        session = await runtime.session("s")
        assert (await session.run("hello")).reason == "completed"
        assert failed.is_set()


async def test_a_dropped_session_is_released_even_if_its_task_is_cancelled_during_the_backoff(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(unit: Unit) -> None:
        if unit.fence is not None:
            raise unheard()

    claimed = asyncio.Event()

    async def note(claims: list[Claim]) -> None:
        if claims:
            claimed.set()

    async with patience(), runtime_on(database, claim_every_seconds=60.0) as runtime:
        store_of(runtime).before["commit"] = fail
        store_of(runtime).after["claim"] = note
        session = await runtime.session("s")
        await session.send("hello")
        await comes_true(lambda: "was dropped" in caplog.text)
        await claimed.wait()  # The session was started before its claim was committed.
        assert len(await runtime.store.held()) == 1, "it is kept for a while"
        await runtime.worker.stop(grace_seconds=0)
        assert await runtime.store.held() == ()


@pytest.mark.parametrize("how", ["lost", "stopped"])
async def test_activities_end_with_their_lease_even_while_a_write_is_in_flight(database: Path, how: str) -> None:
    """Another process may hold the session long before the outcome of the write arrives."""
    running, written = Gate(), Gate()

    @tool(permission="allow")
    async def wait_long() -> str:
        """Wait."""
        await running()
        return "waited"

    async def hold_up(unit: Unit) -> None:
        if unit.fence is not None and not unit.events and not unit.segments:
            await written()

    model = scripted(Reply(tool_calls=(ScriptedCall("wait_long", {}),)), Reply(text="Done."))
    async with patience(), runtime_on(database, model, tools=(wait_long,)) as runtime:
        session = await runtime.session("s")
        await session.send("hello")
        await running.reached.wait()
        store_of(runtime).after["commit"] = hold_up
        rewinding = runtime.operations.rewind(Key(runtime.owner, SessionId("s")), Position(1))
        background = [asyncio.create_task(rewinding)]
        await written.reached.wait()
        try:
            if how == "lost":
                runtime.worker.keeper._lose_all("this process could not renew in time")
            else:
                background.append(asyncio.create_task(runtime.worker.stop(grace_seconds=0)))
            await running.left.wait()
            assert not written.left.is_set(), "the outcome is still waited for"
        finally:
            running.open()
            written.open()
            background[0].cancel()
        await asyncio.gather(*background, return_exceptions=True)


@pytest.mark.parametrize("reads", ["run", "follow"])
async def test_reader_hears_of_a_turn_that_ended_with_an_unknown_outcome_as_its_lease_was_lost(
    database: Path, reads: str
) -> None:
    """The end of the turn is on disk, so the session is idle and never claimed again: no later hint tells of it."""
    async with patience(), runtime_on(database, scripted(Reply(text="Hi."))) as runtime:
        troubled: list[Unit] = []

        async def lose(unit: Unit) -> None:
            if ends_turn(unit) and not troubled:
                troubled.append(unit)
                runtime.worker.keeper._lose_all("this process could not renew in time")
                raise unheard()

        store_of(runtime).after["commit"] = lose
        session = await runtime.session("s")
        if reads == "run":
            ended = await session.run("hello")
        else:
            await session.send("hello", message_id="m")
            ended = await session.result_of("m")
        assert (ended.reason, len(troubled)) == ("completed", 1)
