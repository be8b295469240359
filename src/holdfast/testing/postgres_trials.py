"""Databases on PostgreSQL for a crash campaign: one for each job, emptied before a trial; and the end of a dead
process's lease, which the runner need not wait for, as it knows of the death."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from holdfast.store.postgres.connections import Address
from holdfast.store.postgres.migrations import migrate
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.power_cut.server import cut_server

NOTE = "postgresql-url"
"""The file in a trial's folder that says where its database is. Without one it is a file beside it."""

_EMPTY = """
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables
               WHERE schemaname = 'holdfast' AND tablename NOT IN ('migration', 'identity') LOOP
    EXECUTE format('DELETE FROM holdfast.%I', name);
  END LOOP;
END $$
"""

_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

_TIME_IS_OVER = "UPDATE holdfast.process SET alive_until = '-infinity', leases_until = '-infinity'"


@contextmanager
def forgetful_databases(count: int) -> Iterator[list[str]]:
    """The URLs of so many, with the tables, each on a server of its own whose power may be cut."""
    with ExitStack() as running:
        servers = [running.enter_context(cut_server()) for _ in range(count)]
        for server in servers:
            asyncio.run(migrate(Address(server.url)))
        yield [server.url for server in servers]


_ANY_ALIVE = """
SELECT EXISTS (SELECT 1 FROM holdfast.process WHERE greatest(alive_until, leases_until) > clock_timestamp())
"""


@contextmanager
def databases(count: int) -> Iterator[list[str]]:
    """The URLs of so many, with the tables, on a server of their own."""
    with PostgresServer() as server:
        names = [f"trials_{number}" for number in range(count)]
        for name in names:
            asyncio.run(_run(server.url(), lambda db, name=name: db.execute(f"CREATE DATABASE {name}")))  # type: ignore[misc]
            asyncio.run(migrate(Address(server.url(name))))
        yield [server.url(name) for name in names]


def prepare(folder: Path, url: str) -> None:
    """Give a trial the database at that URL, with nothing in it."""
    (folder / NOTE).write_text(url)

    async def empty(db: Any) -> None:
        await db.fetch(_OTHERS)  # What a killed process left at work would come into the next trial.
        await db.execute(_EMPTY)

    asyncio.run(_run(url, empty))


def url_of(folder: Path) -> str | None:
    note = folder / NOTE
    return note.read_text() if note.exists() else None


def end_leases(folder: Path) -> None:
    """All processes of the trial are dead: whatever they held is free, as it would be a lease later."""
    url = url_of(folder)
    if url is not None:
        asyncio.run(_run(url, lambda db: db.execute(_TIME_IS_OVER)))


def until_dead(folder: Path) -> None:
    """Wait until the time of all processes is over, by the database's clock. They are dead, and short-lived."""
    url = url_of(folder)

    async def wait(db: Any) -> None:
        while await db.fetchval(_ANY_ALIVE):  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.02)

    if url is not None:
        asyncio.run(_run(url, wait))


async def _run(url: str, work: Callable[[Any], Awaitable[Any]]) -> None:
    db = await asyncpg.connect(url)
    try:
        await work(db)
    finally:
        await db.close()
