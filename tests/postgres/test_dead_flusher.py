"""A flusher that fails while its process lives: no call waits for it, and its sessions go on in other processes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.store.backlog import Backlog
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.units import UnitJob
from holdfast.store.store import Unit
from holdfast.testing.store_conformance.words import KEY, MANY, create, hold, info, running, send

pytestmark = pytest.mark.anyio


async def code_of(asked: Callable[[], Awaitable[Any]]) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        async with asyncio.timeout(30):
            await asked()
    return raised.value.code


def fail_with_a_bug(store: PostgresStore) -> UnitJob:
    """Put a unit into the queue that no flusher can handle."""
    unwritable = UnitJob(asyncio.get_running_loop().create_future(), Unit(key=KEY, fence=None, events=(info("late"),)))
    unwritable.size = None  # type: ignore[assignment]
    store._flusher._queue.append(unwritable)
    return unwritable


async def test_every_call_fails_after_the_flusher_failed_and_its_leases_can_be_claimed_at_once(
    store: PostgresStore, postgres_url: str
) -> None:
    lease = await running(store)
    await store.renew(ttl_seconds=3600)
    other = await PostgresStore.open(postgres_url, node="here")
    assert await other.claim(limit=MANY) == []
    unit = Unit(key=KEY, fence=None, events=(info("late"),))
    unwritable = fail_with_a_bug(store)
    assert await code_of(lambda: store.commit(unit)) == "store_writer_died"
    assert await code_of(lambda: store.commit(unit)) == "store_writer_died"
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    assert await code_of(lambda: store.row(KEY)) == "store_writer_died"
    assert await code_of(lambda: unwritable.future) == "store_writer_died"
    assert store._dying is not None
    await store._dying
    assert (await hold(other)).fence != lease.fence
    await other.close()


async def test_units_that_wait_for_room_fail_with_the_flusher(store: PostgresStore) -> None:
    await create(store)
    store._backlog = Backlog(max_jobs=1)
    unwritable = fail_with_a_bug(store)
    unit = Unit(key=KEY, fence=None, events=(info("late"),))
    waiting = [asyncio.ensure_future(store.commit(unit)) for _ in range(3)]
    for ended in (unwritable.future, *waiting):
        assert await code_of(lambda ended=ended: ended) == "store_writer_died"  # type: ignore[misc]


async def test_flusher_failure_stops_the_runtime_s_work_and_every_call_raises(
    postgres_url: str, tmp_path: Path
) -> None:
    reached, never, broken_off = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold_back(piece: int) -> None:
        reached.set()
        try:
            await never.wait()
        finally:
            broken_off.set()

    model = ScriptedModel(Script(rules=(Rule(replies=(Reply(text="never said"),)),)), gate=hold_back)
    told = {"HOME": str(tmp_path), "HOLDFAST_DATA_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    async with asyncio.timeout(60), Runtime(database=postgres_url, model=model, environ=told) as runtime:
        session = await runtime.session()
        await session.send("hello")
        await reached.wait()
        assert isinstance(runtime.store, PostgresStore)
        unwritable = fail_with_a_bug(runtime.store)
        late, store = Unit(key=session.key, fence=None, events=(info("late"),)), runtime.store
        assert await code_of(lambda: store.commit(late)) == "store_writer_died"
        assert await code_of(lambda: unwritable.future) == "store_writer_died"
        async with asyncio.timeout(30):
            assert (await runtime.until_failed()).code == "store_writer_died"
            await broken_off.wait()
        assert await code_of(lambda: session.send("again")) == "store_writer_died"
        assert runtime.store._dying is not None
        await runtime.store._dying
        assert runtime.worker.sessions_held == 0
        other = await PostgresStore.open(postgres_url, node=runtime._node, tools=runtime._registry.names())
        assert [claim.lease.key for claim in await other.claim(limit=MANY)] == [session.key]
        await other.close()
