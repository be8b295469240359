"""A wake-up makes a worker claim at once: the periodic claim is an hour away in all of these tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Changed
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.model import Model
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.server.operations import Operations, SessionOptions
from holdfast.session.bounds import Bounds
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Lease, ReleaseKind
from holdfast.tools.registry import Registry
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker

pytestmark = pytest.mark.anyio

MODEL = ScriptedModel(Script((Rule((Reply(text="Hello."),)),)))
ALICE = Owner("alice")


class ReleaseWatched(SqliteStore):
    """The real store; a test may act right after a session is released, before its holder gets the outcome."""

    after_release: Callable[[], Awaitable[object]] | None = None

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        released = await super().release(lease, seen_tail=seen_tail, how=how)
        todo, self.after_release = self.after_release, None
        if todo is not None:
            await todo()
        return released


async def always(choice: ModelChoice) -> Model:
    return MODEL


@asynccontextmanager
async def working(path: Path, *, max_sessions: int = 10) -> AsyncIterator[tuple[ReleaseWatched, Operations]]:
    clock, bounds, live = SystemClock(), Bounds(), LocalLive()
    store = await ReleaseWatched.open(path, node="here")
    worker = Worker(
        store=store,
        live=live,
        clock=clock,
        bounds=bounds,
        pace=Pace(claim_every_seconds=3600, listen_every_seconds=3600, max_sessions=max_sessions),
        node="here",
        registry=Registry(),
        models=always,
    )
    operations = Operations(
        store=store, live=live, clock=clock, bounds=bounds, node="here", host=None, producer="a test"
    )
    try:
        async with worker, asyncio.timeout(30):
            yield store, operations
    finally:
        await store.close()


async def new_session(operations: Operations) -> Key:
    return Key(ALICE, await operations.create(ALICE, SessionOptions()))


async def turns_end(operations: Operations, key: Key, *, count: int) -> None:
    """Wait until `count` turns of the session have ended."""
    async for reading in operations.read(key).follow():
        count -= isinstance(reading, Event) and isinstance(reading.body, TurnEnded)
        if count == 0:
            return


async def test_a_message_that_arrives_right_after_the_release_runs_at_once(tmp_path: Path) -> None:
    async with working(tmp_path / "h.db") as (store, operations):
        key = await new_session(operations)
        store.after_release = lambda: operations.send(key, "second")
        await operations.send(key, "first")
        await turns_end(operations, key, count=2)


async def test_sessions_that_had_no_free_place_run_as_soon_as_one_is_free(tmp_path: Path) -> None:
    async with working(tmp_path / "h.db", max_sessions=1) as (_, operations):
        keys = [await new_session(operations) for _ in range(5)]
        await asyncio.gather(*(operations.send(key, "hello") for key in keys))
        await asyncio.gather(*(turns_end(operations, key, count=1) for key in keys))


async def test_readers_see_a_promotion_and_it_wakes_no_worker(tmp_path: Path) -> None:
    async with working(tmp_path / "h.db") as (_, operations):
        key = await new_session(operations)
        woken: list[Key | None] = []
        operations.live.on_change(lambda changed, tail: woken.append(changed))
        subscription = operations.live.subscribe(key)
        await operations.send(key, "hello")
        await turns_end(operations, key, count=1)
        while await subscription.next() != Changed(promoted=True):
            pass
        subscription.close()
        assert woken == [None, key], "created, then put; no wake-up for the promotion"
