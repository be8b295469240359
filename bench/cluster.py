"""What the cluster's figures are measured on: one PostgreSQL that syncs every commit and one Valkey for all the probes,
and a database of its own for each run. They are on the models' core, as if they were on another machine."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import msgspec

from bench.place import Place
from bench.served import on_cores
from proof.postgres_server import PostgresServer
from proof.valkey_server import valkey_server

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    # A million rows fit in, and are written out once: no checkpoint comes in the middle of a measurement.
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}


class Servers(msgspec.Struct, frozen=True):
    postgres_url: str
    redis_url: str


@contextmanager
def servers(folder: Path, core: int | None) -> Iterator[Servers]:
    """Both are gone afterwards, with all that they kept. PostgreSQL's files are in the system's temporary folder."""
    with ExitStack() as stack:
        with on_cores(core):
            postgres = stack.enter_context(PostgresServer(settings=SETTINGS))
            valkey = stack.enter_context(valkey_server(folder))
        yield Servers(postgres.url(), valkey.url)


@asynccontextmanager
async def database(place: Place, name: str) -> AsyncIterator[str]:
    """A new one, which is empty; its URL. It is dropped in the end."""
    await make_database(place, name)
    try:
        yield url_of(place, name)
    finally:
        await _ask(place, f"DROP DATABASE {name} WITH (FORCE)")


async def make_database(place: Place, name: str) -> str:
    await _ask(place, f"CREATE DATABASE {name}")
    return url_of(place, name)


def url_of(place: Place, name: str) -> str:
    return urlsplit(place.postgres_url)._replace(path=f"/{name}").geturl()


async def _ask(place: Place, statement: str) -> None:
    connection = await asyncpg.connect(place.postgres_url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
