"""A session that gets message after message does not keep others from a free place or a slot of their owner."""

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.events.turn import TurnEnded
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.model import Model
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.server.operations import Operations, SessionOptions
from holdfast.session.bounds import Bounds
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.tools.registry import Registry
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker

pytestmark = pytest.mark.anyio

MODEL = ScriptedModel(Script((Rule((Reply(text="Hello."),)),)))
ALICE = Owner("alice")
BUSY, OTHER = Key(ALICE, SessionId("busy")), Key(ALICE, SessionId("other"))
TURNS = {BUSY: 3, OTHER: 1}


async def turns_end(operations: Operations, key: Key, *, count: int) -> None:
    """Wait until `count` turns of the session have ended."""
    async for reading in operations.read(key).follow():
        count -= isinstance(reading, Event) and isinstance(reading.body, TurnEnded)
        if count == 0:
            return


@pytest.mark.parametrize(
    ("max_sessions", "limits"),
    [(1, NO_LIMITS), (10, TurnLimits(running=1))],
    ids=["one place in the process", "one slot of the owner"],
)
async def test_a_busy_session_yields_to_other_sessions_between_turns(
    tmp_path: Path, max_sessions: int, limits: TurnLimits
) -> None:
    clock, bounds, live = SystemClock(), Bounds(), LocalLive()
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here", limits=limits)
    asked: list[SessionId] = []

    async def models(choice: ModelChoice) -> Model:
        asked.append(choice.key.session)
        return MODEL

    operations = Operations(
        store=store, live=live, clock=clock, bounds=bounds, node="here", host=None, producer="a test"
    )
    worker = Worker(
        store=store,
        live=live,
        clock=clock,
        bounds=bounds,
        pace=Pace(claim_every_seconds=3600, listen_every_seconds=3600, max_sessions=max_sessions),
        node="here",
        registry=Registry(),
        models=models,
    )
    try:
        for key, count in TURNS.items():
            await operations.create(ALICE, SessionOptions(), key.session)
            for _ in range(count):
                await operations.send(key, "go on", delivery="enqueue")
        async with worker, asyncio.timeout(30):
            await asyncio.gather(*(turns_end(operations, key, count=count) for key, count in TURNS.items()))
    finally:
        await store.close()
    assert [name for name, _ in groupby(asked)] == ["busy", "other", "busy"]
