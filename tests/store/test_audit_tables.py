"""The databases themselves refuse to change an entry of the audit log."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.audit import DENIED

pytestmark = pytest.mark.anyio


async def test_sqlite_refuses_to_change_an_entry(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    await store.audit(DENIED)
    with closing(sqlite3.connect(tmp_path / "holdfast.db")) as db:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute("UPDATE audit SET target = 'another'")
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute("UPDATE OR REPLACE audit SET number = 7")
    assert [record.entry for record in (await store.audit_log(limit=9)).records] == [DENIED]
    await store.close()


async def test_postgresql_refuses_to_change_an_entry(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url, node="here")
    await store.audit(DENIED)
    db = await asyncpg.connect(postgres_url)
    try:
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await db.execute("UPDATE holdfast.audit SET target = 'another'")
    finally:
        await db.close()
    assert [record.entry for record in (await store.audit_log(limit=9)).records] == [DENIED]
    await store.close()


async def test_an_entry_of_an_unfinished_transaction_holds_the_reader_and_is_not_passed_by(postgres_url: str) -> None:
    """A transaction has numbered its entry and is not committed: a later entry is shown only together with it."""
    store = await PostgresStore.open(postgres_url, node="here")
    other = await asyncpg.connect(postgres_url)
    try:
        await other.execute("BEGIN")
        await other.execute("SELECT pg_advisory_xact_lock_shared(1752132709, 0)")
        await other.execute(
            "INSERT INTO holdfast.audit (at, actor, actor_id, actor_owner, role, address, action, owner, target,"
            " result, detail) VALUES (1, 'key', '', '', '', '', 'key.created', '', 'slow', 'done', '')"
        )
        await store.audit(DENIED)  # Writers do not wait for each other.
        reading = asyncio.create_task(store.audit_log(limit=9))
        watching = await asyncpg.connect(postgres_url)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1752132709 AND NOT granted"
        async with asyncio.timeout(20):
            while not await watching.fetchval(waits):
                pass
        await watching.close()
        assert not reading.done()
        await other.execute("COMMIT")
        page = await reading
    finally:
        await other.close()
    assert [record.entry.target for record in page.records] == ["slow", DENIED.target]
    await store.close()
