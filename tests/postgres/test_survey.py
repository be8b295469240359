"""Surveys of a database on a primary and its standby."""

import asyncio
import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator

import asyncpg
import pytest

from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from holdfast.store.postgres.survey import survey
from holdfast.store.survey import DatabaseServer
from proof.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

REPLICATION = {"wal_level": "replica", "max_wal_senders": "4"}


@contextlib.contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A standby that replicates the primary."""
    standby = PostgresServer(settings=REPLICATION)
    with contextlib.ExitStack() as ending:
        ending.callback(standby.remove)
        shutil.rmtree(standby.data)
        primary.run("pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--pgdata", str(standby.data))
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody").pw_uid
            for path in (standby.data, *standby.data.rglob("*")):
                os.chown(path, nobody, -1)
        standby.start()
        yield standby


async def until_followed(address: DatabaseAddress) -> DatabaseServer:
    while True:
        found = (await survey(address)).server
        if found.replicas:
            return found
        await asyncio.sleep(0.05)


async def test_survey_shows_a_standby_and_counts_it_on_its_primary() -> None:
    with PostgresServer(settings=REPLICATION) as primary:
        await migrate(DatabaseAddress(primary.url()))
        with standby_of(primary) as standby:
            async with asyncio.timeout(60):
                followed = await until_followed(DatabaseAddress(primary.url()))
            assert (followed.role, followed.is_writable, followed.replicas) == ("primary", True, 1)
            follows = await survey(DatabaseAddress(standby.url()))
            assert (follows.server.role, follows.server.is_writable) == ("standby", False)
            assert follows.server.replica_lag_seconds is not None
            assert follows.schema.pending == ()


async def test_survey_shows_a_read_only_primary(postgres_url: str) -> None:
    db = await asyncpg.connect(postgres_url)
    name = await db.fetchval("SELECT current_database()")
    await db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        assert not (await survey(DatabaseAddress(postgres_url))).server.is_writable
    finally:
        await db.execute(f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
        await db.close()


async def test_survey_through_a_pooler_leaves_nothing_in_its_connections(postgres_url: str) -> None:
    """Settings are made for the transaction only, and no statement is prepared."""
    seen = await survey(DatabaseAddress(postgres_url, is_pooled=True))
    assert (seen.server.role, seen.work.backlog, seen.contents is not None) == ("primary", 0, True)
