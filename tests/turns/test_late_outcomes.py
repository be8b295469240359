"""Outcomes and readings may arrive late, after the holder has read the events from the log and continued."""

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from holdfast.events.ids import Fence, Key, MessageId, TurnId
from holdfast.events.session import SessionInfo
from holdfast.events.turn import StepEnded, StepStarted, TurnEnded, TurnStarted
from holdfast.session.actions import Append
from holdfast.store.store import Outcome, Unit
from tests.turns.recording import KEY, recording

pytestmark = pytest.mark.anyio


def begins(turn: str) -> Append:
    step = StepStarted(turn_id=TurnId(turn), step=1, message_id=MessageId(f"m-{turn}"))
    return Append(events=[TurnStarted(turn_id=TurnId(turn)), step])


def ends(turn: str) -> Append:
    ended = TurnEnded(turn_id=TurnId(turn), reason="completed")
    return Append(events=[StepEnded(turn_id=TurnId(turn), step=1), ended])


async def test_the_row_shows_the_end_of_a_turn_even_if_the_outcome_of_the_previous_end_arrived_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives = asyncio.Event()
    async with recording(tmp_path) as found:
        held, store = found.held, found.store
        at_once = store.commit

        def late(unit: Unit) -> Awaitable[Outcome]:
            written = at_once(unit)

            async def answer() -> Outcome:
                await arrives.wait()
                return await written

            return answer()

        await held.commit(begins("first"))
        with monkeypatch.context() as slow:
            slow.setattr(store, "commit", late)
            ending = asyncio.create_task(held.commit(ends("first")))
            await asyncio.sleep(0)
        await held.commit(Append(events=[SessionInfo(info_type="note", message="finds the end in the log")]))
        assert held.state.turn is None
        await held.commit(begins("second"))
        arrives.set()
        await ending
        row = await store.row(KEY)
        assert row is not None
        assert row.turn_id == "second"
        await held.commit(ends("second"))
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.turn_id) == ("queued", None), "the message that was sent first still waits"


async def test_refresh_of_the_inbox_waits_for_the_one_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one would otherwise decide on the old inbox."""
    reading, go_on = asyncio.Event(), asyncio.Event()
    async with recording(tmp_path) as found:
        tails = found.store.tails

        async def held_up(keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
            reading.set()
            await go_on.wait()
            return await tails(keys)

        monkeypatch.setattr(found.store, "tails", held_up)
        found.held.wake()
        first = asyncio.create_task(found.held.refresh_inbox())
        await reading.wait()
        second = asyncio.create_task(found.held.refresh_inbox())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        go_on.set()
        await asyncio.gather(first, second)
