"""The backlog of writes is bounded: units wait for room, in order, and other client writes are refused."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from holdfast.events.ids import Fence
from holdfast.store import crash_points
from holdfast.store.backlog import Backlog
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, FenceMissed, Unit
from holdfast.testing.store_conformance.words import KEY, create, info, running, send
from tests.store.test_sqlite_background import Busy

pytestmark = pytest.mark.anyio


def unit(text: str) -> Unit:
    return Unit(key=KEY, fence=None, events=(info(text),))


@pytest.mark.parametrize("backlog", [Backlog(max_jobs=3), Backlog(max_bytes=3 * 512)], ids=["jobs", "bytes"])
async def test_full_backlog_on_sqlite_makes_units_wait_and_refuses_puts(tmp_path: Path, backlog: Backlog) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    await create(store)
    store._backlog = backlog
    busy = Busy()
    crash_points.install(busy.visit)
    try:
        units = [asyncio.ensure_future(store.commit(unit(str(number)))) for number in range(10)]
        await asyncio.to_thread(busy.is_held.wait, 30)
        assert backlog.jobs == 3
        with pytest.raises(StoreUnavailable) as refused:
            await send(store, "m")
        assert refused.value.code == "store_busy"
        renewal = asyncio.ensure_future(store.renew(ttl_seconds=30))
        busy.go.set()
        outcomes = await asyncio.gather(*units)
        assert await renewal
    finally:
        busy.go.set()
        crash_points.install(None)
    assert [done.head for done in outcomes if isinstance(done, Committed)] == list(range(2, 12)), "in order, none lost"
    await send(store, "m")
    assert (backlog.jobs, backlog.bytes) == (0, 0)
    await store.close()


async def test_full_backlog_on_postgresql_makes_units_wait(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url, node="here")
    await create(store)
    store._backlog = backlog = Backlog(max_jobs=3)
    units = [asyncio.ensure_future(store.commit(unit(str(number)))) for number in range(10)]
    await asyncio.sleep(0)
    assert backlog.jobs == 3
    outcomes = await asyncio.gather(*units)
    assert [done.head for done in outcomes if isinstance(done, Committed)] == list(range(2, 12)), "in order, none lost"
    assert (backlog.jobs, backlog.bytes) == (0, 0)
    await store.close()


async def test_every_unit_leaves_the_backlog_of_postgresql_once_however_it_ends(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres_url, node="here")
    lease = await running(store)
    other = await asyncpg.connect(postgres_url)
    monkeypatch.setattr("holdfast.store.postgres.flusher.PATIENCE_SECONDS", 0.1)
    async with other.transaction():
        await other.execute("SELECT 1 FROM holdfast.session WHERE id = $1 FOR UPDATE", str(KEY.session))
        given_up = [asyncio.ensure_future(store.commit(unit(str(number)))) for number in range(5)]
        cancelled = asyncio.ensure_future(store.commit(unit("cancelled")))
        await asyncio.sleep(0)
        cancelled.cancel()
        failures = await asyncio.gather(*given_up, return_exceptions=True)
    assert all(isinstance(failure, StoreUnavailable) for failure in failures)
    refused = await store.commit(Unit(key=KEY, fence=Fence(lease.fence + 1), events=(info("late"),)))
    written = await store.commit(unit("written"))
    assert (type(refused), type(written)) == (FenceMissed, Committed)
    assert (store._backlog.jobs, store._backlog.bytes) == (0, 0)
    await other.close()
    await store.close()


async def test_cancelled_waiter_leaves_its_room_to_the_next() -> None:
    backlog = Backlog(max_jobs=1)
    backlog.add(1)
    waiting = [asyncio.ensure_future(backlog.room()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    backlog.remove(1, 1)
    await waiting[1]
    assert waiting[0].cancelled()
    await asyncio.sleep(0)
    assert backlog.has_room
