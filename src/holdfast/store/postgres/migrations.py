"""Migrates a database to this release's schema, forwards only. Each migration is one transaction under a lock, so that
processes that start together take turns; a migration must not break an older release that still runs."""

from pathlib import Path
from typing import Final

import asyncpg

from holdfast.store.errors import StoreUnusable
from holdfast.store.postgres.connections import BOUNDS_TRANSACTIONS, DatabaseAddress, PostgresConnection
from holdfast.store.postgres.failures import unusable
from holdfast.store.survey import Schema

OLDEST_POSTGRES: Final = 14

LOCK: Final = 0x686F6C6466617374
"""The advisory lock of migrations: a number that no other program is likely to use."""

MIGRATION_SECONDS: Final = 3600.0
"""How long a migration may take, or wait for that of another process."""

_BEGIN: Final = "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
_TABLE: Final = """
CREATE SCHEMA IF NOT EXISTS holdfast;
CREATE TABLE IF NOT EXISTS holdfast.migration (
  version integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def _read() -> dict[str, str]:
    folder = Path(__file__).with_name("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in files}


_SCRIPTS: Final = _read()
MIGRATIONS: Final = tuple(_SCRIPTS.values())
NAMES: Final = tuple(_SCRIPTS)


async def migrate(address: DatabaseAddress, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Run the missing migrations. A database of a newer release is refused and left as it is."""
    await (await migrated(address, migrations)).close(timeout=5)


async def migrated(address: DatabaseAddress, migrations: tuple[str, ...] = MIGRATIONS) -> PostgresConnection:
    """The same; returns the connection that it used."""
    try:
        db = await address.connect()
    except Exception as error:
        raise unusable(error) from None  # The cause may hold a part of the URL.
    try:
        while await _version(db, newest=len(migrations)) < len(migrations):
            await _step(db, migrations)
    except BaseException as error:
        db.terminate()
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | OSError):
            raise unusable(error) from error
        raise
    return db


async def schema_of(db: PostgresConnection) -> Schema:
    """The migrations that were run and those still pending. A database of a newer release, or of another program, is
    refused."""
    version = await _version(db, newest=len(MIGRATIONS))
    return Schema(version=version, pending=NAMES[version:])


async def _version(db: PostgresConnection, *, newest: int) -> int:
    """The number of migrations that were run. Most processes find all of them done: they take no lock, and need no
    right to create anything."""
    await _begin(db)
    try:
        await _check_server(db)
        return await _read_version(db, newest=newest)
    finally:
        await db.execute("ROLLBACK")


async def _begin(db: PostgresConnection) -> None:
    """Begin a transaction without timeouts: a migration may take long."""
    is_bounded = db.get_server_version().major >= BOUNDS_TRANSACTIONS
    await db.execute(_BEGIN + ("; SET LOCAL transaction_timeout = 0" if is_bounded else ""))


async def _check_server(db: PostgresConnection) -> None:
    if db.get_server_version().major < OLDEST_POSTGRES:
        raise StoreUnusable(
            "store_too_old",
            f"This is PostgreSQL {db.get_server_version().major}; Holdfast needs {OLDEST_POSTGRES} or newer.",
        )
    encoding = await db.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreUnusable(
            "store_not_a_database",
            f"The database's encoding is {encoding}; Holdfast needs UTF8. Create one with ENCODING 'UTF8'.",
        )
    if await db.fetchval("SHOW synchronous_commit") == "off":
        raise StoreUnusable(
            "store_not_durable",
            "PostgreSQL acknowledges what is not on disk yet: synchronous_commit is off for this database or user. "
            "Turn it on.",
        )


async def _read_version(db: PostgresConnection, *, newest: int) -> int:
    if await db.fetchval("SELECT to_regclass('holdfast.migration')") is None:
        if await db.fetchval("SELECT to_regclass('holdfast.session')") is not None:
            raise StoreUnusable(
                "store_not_a_database",
                "The database has a schema named holdfast of another program. Name another database for Holdfast's.",
            )
        return 0
    version = int(await db.fetchval("SELECT coalesce(max(version), 0) FROM holdfast.migration"))
    if version > newest:
        raise StoreUnusable(
            "store_newer",
            f"The database was written by a newer release of Holdfast (schema {version}, this one knows {newest}). "
            "Upgrade Holdfast, or restore a backup from before the upgrade.",
        )
    return version


async def _step(db: PostgresConnection, migrations: tuple[str, ...]) -> None:
    """Run one migration, unless another process was faster."""
    await _begin(db)
    try:
        await db.execute(f"SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})", timeout=MIGRATION_SECONDS)
        await db.execute(_TABLE)
        version = await _read_version(db, newest=len(migrations))
        if version < len(migrations):
            # While it waited for a lock that is held for long, all other processes would wait behind it.
            await db.execute("SET LOCAL lock_timeout = '10s'")
            await db.execute(migrations[version], timeout=MIGRATION_SECONDS)
            await db.execute(f"INSERT INTO holdfast.migration (version) VALUES ({version + 1})")
        await db.execute("COMMIT")
    finally:
        if not db.is_closed() and db.is_in_transaction():
            await db.execute("ROLLBACK")
