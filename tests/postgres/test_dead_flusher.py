"""A flusher that fails though its process lives: nothing waits for it, and its sessions go on elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.units import UnitJob
from holdfast.store.store import Unit
from holdfast.testing.store_conformance.words import KEY, MANY, hold, info, running, send

pytestmark = pytest.mark.anyio


async def code_of(asked: Callable[[], Awaitable[Any]]) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        async with asyncio.timeout(30):
            await asked()
    return raised.value.code


async def test_nothing_waits_for_a_dead_flusher_and_its_leases_are_claimed_at_once(
    store: PostgresStore, postgres_url: str
) -> None:
    lease = await running(store)
    await store.renew(ttl_seconds=3600)
    other = await PostgresStore.open(postgres_url, node="here")
    assert await other.claim(limit=MANY) == []
    unit = Unit(key=KEY, fence=None, events=(info("late"),))
    unwritable = UnitJob(asyncio.get_running_loop().create_future(), unit)
    unwritable.size = None  # type: ignore[assignment]
    store._flusher._queue.append(unwritable)
    assert await code_of(lambda: store.commit(unit)) == "store_writer_died"
    assert await code_of(lambda: store.commit(unit)) == "store_writer_died"
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    assert await code_of(lambda: store.row(KEY)) == "store_writer_died"
    assert await code_of(lambda: unwritable.future) == "store_writer_died"
    assert store._dying is not None
    await store._dying
    assert (await hold(other)).fence != lease.fence
    await other.close()
