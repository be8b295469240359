"""A snapshot is written concurrently with the units of its session, and without the session's lock."""

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.events.ids import Position
from holdfast.session.fold import FOLD_VERSION
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Snapshot
from holdfast.testing.store_conformance.words import KEY, create, send

pytestmark = pytest.mark.anyio


async def test_session_deleted_while_its_snapshot_is_written_leaves_no_snapshot(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted session is also removed from the cache of snapshots."""
    await create(store)
    await send(store, "m")
    (claim,) = await store.claim(limit=1)
    written, deleted = asyncio.Event(), asyncio.Event()
    run = Link.run

    async def stand_still(self: Link, name: str, *given: Any) -> int:
        count = await run(self, name, *given)
        if name == "keep_snapshot":
            written.set()
            await deleted.wait()
        return count

    monkeypatch.setattr(Link, "run", stand_still)
    keeping = asyncio.create_task(store.keep_snapshot(claim.lease, Snapshot(FOLD_VERSION, Position(1), b"secret")))
    await written.wait()
    assert await store.delete(KEY)
    deleted.set()
    assert not await keeping
    db = await asyncpg.connect(postgres_url)
    assert await db.fetchval("SELECT count(*) FROM holdfast.snapshot") == 0
    await db.close()


async def test_snapshot_is_kept_while_the_session_is_being_written(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(store)
    await send(store, "m")
    (claim,) = await store.claim(limit=1)
    db = await asyncpg.connect(postgres_url)
    writing = db.transaction()
    await writing.start()
    await db.execute("SELECT 1 FROM holdfast.session FOR UPDATE")
    row = Link.row
    looks = 0

    async def end_at_the_second_look(self: Link, name: str, *given: Any) -> Any:
        nonlocal looks
        if name == "is_not_deleted":
            looks += 1
            if looks == 2:
                await writing.commit()
        return await row(self, name, *given)

    monkeypatch.setattr(Link, "row", end_at_the_second_look)
    assert await store.keep_snapshot(claim.lease, Snapshot(FOLD_VERSION, Position(1), b"state"))
    assert looks == 2
    assert await db.fetchval("SELECT count(*) FROM holdfast.snapshot") == 1
    await db.close()
