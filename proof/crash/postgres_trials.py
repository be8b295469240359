"""Databases on PostgreSQL for a crash campaign: one for each job, emptied before a trial; and the end of a dead
process's lease, which the runner need not wait for, as it knows of the death."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import asyncpg

from holdfast.store.postgres.connections import DatabaseAddress, Link
from holdfast.store.postgres.failures import is_lost
from holdfast.store.postgres.migrations import migrate
from proof.crash import postgres_types
from proof.postgres_server import PostgresServer
from proof.power_cut.server import cut_server

T = TypeVar("T")

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
  UPDATE holdfast.identity SET files = NULL;
END $$
"""

_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

_TIME_IS_OVER = "UPDATE holdfast.process SET alive_until = '-infinity', leases_until = '-infinity'"


@contextmanager
def forgetful_databases(count: int) -> Iterator[list[str]]:
    """The URLs of so many databases, with the tables, each on its own server whose power may be cut."""
    with ExitStack() as running:
        servers = [running.enter_context(cut_server()) for _ in range(count)]
        for server in servers:
            asyncio.run(migrate(DatabaseAddress(server.url)))
        yield [server.url for server in servers]


_ANY_ALIVE = """
SELECT EXISTS (SELECT 1 FROM holdfast.process WHERE greatest(alive_until, leases_until) > clock_timestamp())
"""


@contextmanager
def databases(count: int) -> Iterator[list[str]]:
    """The URLs of so many, with the tables, on a server of their own."""
    with PostgresServer() as server:
        asyncio.run(migrate(DatabaseAddress(server.url("template1"))))
        names = [f"trials_{number}" for number in range(count)]
        asyncio.run(_create(server.url(), names))
        asyncio.run(postgres_types.learn(server.url()))
        yield [server.url(name) for name in names]


async def _create(url: str, names: Sequence[str]) -> None:
    """Copies of `template1`, which has the tables."""
    db = await asyncpg.connect(url)
    try:
        for name in names:
            await db.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    finally:
        await db.close()


def prepare(folder: Path, url: str) -> None:
    """Give a trial the database at that URL, with nothing in it."""
    (folder / NOTE).write_text(url)

    async def empty(db: Link) -> None:
        await db.raw.fetch(_OTHERS)  # Transactions that a killed process left running would reach into the next trial.
        await db.raw.execute(_EMPTY)

    run(url, empty)


def url_of(folder: Path) -> str | None:
    note = folder / NOTE
    return note.read_text() if note.exists() else None


def end_leases(folder: Path) -> None:
    """All processes of the trial are dead: free their leases, as expiry would do later."""
    url = url_of(folder)
    if url is not None:
        run(url, lambda db: db.raw.execute(_TIME_IS_OVER))


def until_dead(folder: Path) -> None:
    """Wait until the time of all processes is over, by the database's clock. They are dead, and short-lived."""
    url = url_of(folder)

    async def wait(db: Link) -> None:
        while await db.raw.fetchval(_ANY_ALIVE):  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.02)

    if url is not None:
        run(url, wait)


# The runner's own connection


class _Observer:
    """The connection over which a runner looks at the database of its trials, and empties it. A new one for each look
    would cost more than the look: PostgreSQL would plan the same statements anew."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._link: Link | None = None

    def run(self, work: Callable[[Link], Awaitable[T]]) -> T:
        return self._loop.run_until_complete(self._run(work))

    async def _run(self, work: Callable[[Link], Awaitable[T]]) -> T:
        """A connection that was lost since the last time, as after a cut of the power, shows only when it is used."""
        link = self._link
        if link is not None:
            try:
                return await work(link)
            except Exception as error:
                if not is_lost(error):
                    raise
                link.raw.terminate()
        address = DatabaseAddress(self.url)
        self._link = Link(await address.connect(), address)
        return await work(self._link)


_observer: _Observer | None = None


def run(url: str, work: Callable[[Link], Awaitable[T]]) -> T:
    """Do that over the connection that this process keeps to the database at `url`, and perhaps twice, if it was lost.
    A forked process makes its own."""
    global _observer
    if _observer is None or _observer.url != url or _observer.process != os.getpid():
        _observer = _Observer(url)
    return _observer.run(work)
