"""The schema is created and migrated under a lock, completely or not at all, while other processes work."""

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from holdfast.store.errors import StoreUnusable
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import LOCK, MIGRATIONS, migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Unit
from holdfast.testing.store_conformance.words import KEY, committed, create, info
from tests.postgres.others import Other
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

NEXT = "ALTER TABLE holdfast.session ADD COLUMN next_release text; CREATE TABLE holdfast.new_one (id text PRIMARY KEY);"


@pytest.fixture
async def empty(postgres_databases: Databases) -> str:
    return postgres_databases.server.url(await postgres_databases.fresh(is_empty=True))


async def versions(url: str) -> list[int]:
    db = await asyncpg.connect(url)
    try:
        return [row[0] for row in await db.fetch("SELECT version FROM holdfast.migration ORDER BY version")]
    finally:
        await db.close()


async def until_waiting(db: asyncpg.Connection, count: int) -> None:
    while True:
        found = await db.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        if found == count:
            return
        await asyncio.sleep(0.01)


async def test_three_processes_that_start_together_create_the_tables_once(
    empty: str, start: Callable[[str], Other]
) -> None:
    """All of them wait for the same lock before anything is created: one creates the tables, the others find them."""
    db = await asyncpg.connect(empty)
    await db.execute(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})")
    others = [start(empty) for _ in range(3)]
    async with asyncio.timeout(60):
        await until_waiting(db, 3)
    await db.execute("COMMIT")
    await db.close()
    assert [other.hear() for other in others] == ["ready"] * 3
    assert await versions(empty) == list(range(1, len(MIGRATIONS) + 1))
    for other in others:
        assert other.tell("close") == "closed"


async def test_process_of_the_previous_release_goes_on_during_a_migration(empty: str) -> None:
    old = await PostgresStore.open(empty, node="here")
    await create(old)
    stop = asyncio.Event()

    async def work() -> int:
        head = 0
        while not stop.is_set():
            head = committed(await old.commit(Unit(key=KEY, fence=None, events=(info("x"),)))).head
        return head

    working = asyncio.ensure_future(work())
    await migrate(DatabaseAddress(empty), (*MIGRATIONS, NEXT))
    stop.set()
    head = await working
    assert committed(await old.commit(Unit(key=KEY, fence=None, events=(info("x"),)))).head == head + 1
    row = await old.row(KEY)
    assert row is not None
    await old.close()


async def test_newer_database_is_refused_and_unchanged(empty: str) -> None:
    await migrate(DatabaseAddress(empty), (*MIGRATIONS, NEXT))
    with pytest.raises(StoreUnusable) as raised:
        await PostgresStore.open(empty, node="here")
    assert raised.value.code == "store_newer"
    assert f"schema {len(MIGRATIONS) + 1}, this one knows {len(MIGRATIONS)}" in raised.value.message
    assert await versions(empty) == list(range(1, len(MIGRATIONS) + 2))


async def test_failed_migration_leaves_nothing_and_can_be_retried(empty: str) -> None:
    await migrate(DatabaseAddress(empty))
    with pytest.raises(Exception, match="PostgreSQL failed"):
        await migrate(DatabaseAddress(empty), (*MIGRATIONS, NEXT + "SELECT no_such_column FROM holdfast.session;"))
    assert await versions(empty) == list(range(1, len(MIGRATIONS) + 1))
    await migrate(DatabaseAddress(empty), (*MIGRATIONS, NEXT))
    assert await versions(empty) == list(range(1, len(MIGRATIONS) + 2))


async def test_migrated_database_needs_no_right_to_create_anything(empty: str) -> None:
    await migrate(DatabaseAddress(empty))
    db = await asyncpg.connect(empty)
    name = empty.partition("?")[0].rpartition("/")[2]
    await db.execute(
        f"CREATE ROLE plain_{name} LOGIN; GRANT USAGE ON SCHEMA holdfast TO plain_{name};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO plain_{name}"
    )
    await db.close()
    store = await PostgresStore.open(empty.replace("//postgres@", f"//plain_{name}@"), node="here")
    committed(await create(store))
    await store.close()


async def test_user_without_the_right_to_create_tables_reads_what_to_grant(
    postgres_databases: Databases, empty: str
) -> None:
    name = empty.partition("?")[0].rpartition("/")[2]
    db = await asyncpg.connect(empty)
    await db.execute(f"CREATE ROLE stranger_{name} LOGIN")
    await db.close()
    with pytest.raises(StoreUnusable) as raised:
        await PostgresStore.open(empty.replace("//postgres@", f"//stranger_{name}@"), node="here")
    assert (raised.value.code, "CREATE on the database" in raised.value.message) == ("store_refused", True)


async def test_schema_of_another_program_is_refused_and_unchanged(empty: str) -> None:
    db = await asyncpg.connect(empty)
    await db.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.session (mine text)")
    await db.close()
    with pytest.raises(StoreUnusable) as raised:
        await PostgresStore.open(empty, node="here")
    assert raised.value.code == "store_not_a_database"


async def test_database_in_another_encoding_is_refused(postgres_databases: Databases) -> None:
    server = postgres_databases.server
    db = await asyncpg.connect(server.url())
    await db.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    await db.close()
    with pytest.raises(StoreUnusable, match="needs UTF8"):
        await PostgresStore.open(server.url("latin"), node="here")


async def test_database_without_synchronous_commit_is_refused(empty: str) -> None:
    name = empty.partition("?")[0].rpartition("/")[2]
    db = await asyncpg.connect(empty)
    await db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await db.close()
    with pytest.raises(StoreUnusable, match="synchronous_commit is off"):
        await PostgresStore.open(empty, node="here")
