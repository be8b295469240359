"""Every write that is acknowledged to a person or a program is on disk by then. Only writes that expire by themselves,
or are repeated, are left to the next sync."""

from collections import defaultdict
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from holdfast.store import crash_points
from holdfast.store.crash_points import VERBS
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.writes import every_write

pytestmark = pytest.mark.anyio

UNSYNCED: Final = {
    *("renew", "attach", "detach", "decline", "see_host", "keep_snapshot", "index_logs"),
    *("claim_deliveries", "end_delivery", "drop_old_deliveries"),
}
"""Leases and presence, which a restart of the machine ends anyway; what is made again from the log: snapshots and the
text index; and attempts of webhooks, which are made again."""
UNSYNCED_ON_SQLITE: Final = UNSYNCED | {"claim", "release"}
"""A restart of the machine ends all holders, which are on the same machine."""

OPENING: Final = {"register"}
"""Written while the store is opened, before anything can be acknowledged."""


async def test_every_acknowledged_write_of_sqlite_is_synced(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    levels: dict[str, set[int]] = defaultdict(set)

    def look(point: str) -> None:
        """Runs on the writer's thread, in the transaction that is about to be committed."""
        verb, _, moment = point.partition(":")
        if moment.endswith(":before"):
            levels[verb].add(store._writer._db.execute("PRAGMA synchronous").fetchone()[0])

    crash_points.install(look)
    try:
        called = {verb async for verb in every_write(store)}
    finally:
        crash_points.install(None)
        await store.close()
    normal, full = {1}, {2}
    assert called == set(VERBS) - OPENING
    assert dict(levels) == {verb: normal if verb in UNSYNCED_ON_SQLITE else full for verb in called}


_WATCH = """
CREATE SCHEMA watching;
CREATE UNLOGGED TABLE watching.commits (level text, place text);
CREATE FUNCTION watching.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO watching.commits VALUES (current_setting('synchronous_commit'), TG_TABLE_NAME);
  RETURN NULL;
END $$;
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' LOOP
    EXECUTE format('CREATE CONSTRAINT TRIGGER watching AFTER INSERT OR UPDATE OR DELETE ON holdfast.%I '
                   'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION watching.note()', name);
  END LOOP;
END $$;
"""
"""Deferred triggers run last before a commit, in its transaction, and so under its setting."""


async def test_every_acknowledged_write_of_postgresql_is_synced(postgres_url: str) -> None:
    watching = await asyncpg.connect(postgres_url)
    await watching.execute(_WATCH)
    store = await PostgresStore.open(postgres_url, node="here")
    await store._liveness.stop()  # Its own row is written now and then, and not for a verb.
    levels: dict[str, set[str]] = defaultdict(set)
    try:
        await watching.execute("DELETE FROM watching.commits")
        async for verb in every_write(store):
            levels[verb] |= {level for (level,) in await watching.fetch("SELECT DISTINCT level FROM watching.commits")}
            await watching.execute("DELETE FROM watching.commits")
    finally:
        await store.close()
        await watching.execute("DROP SCHEMA watching CASCADE")
        await watching.close()
    assert set(levels) == set(VERBS) - OPENING
    assert dict(levels) == {verb: {"off"} if verb in UNSYNCED else {"on"} for verb in levels}
