"""Migrates a database to this release's schema, forwards only. Each migration is one transaction, and processes that
start together take turns."""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

from holdfast.store.errors import StoreUnusable
from holdfast.store.sqlite.connections import (
    APPLICATION_ID,
    BUSY_SECONDS,
    connect,
    create_if_missing,
    refuse_folder,
    unusable,
)
from holdfast.store.sqlite.filesystem import refuse_network
from holdfast.store.survey import Schema


def _read() -> dict[str, str]:
    folder = Path(__file__).with_name("migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in files}


_SCRIPTS: Final = _read()
MIGRATIONS: Final = tuple(_SCRIPTS.values())
NAMES: Final = tuple(_SCRIPTS)


def migrate_file(path: Path) -> None:
    """Create or migrate the database without registering a process in it."""
    refuse_network(path)
    refuse_folder(path)
    try:
        create_if_missing(path)
        with contextlib.closing(connect(path)) as db:
            migrate(db, path)
    except (sqlite3.Error, OSError) as error:
        raise unusable(error, path) from error


def migrate(db: sqlite3.Connection, path: Path, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Run the missing migrations. A database of a newer release is refused and left as it is."""
    _check_in_transaction(db, path, newest=len(migrations))
    _use_wal(db)
    while True:
        db.execute("BEGIN IMMEDIATE")
        try:
            version = _check(db, path, newest=len(migrations))
            if version == len(migrations):
                return
            _apply(db, migrations[version], version=version + 1)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def schema_of(db: sqlite3.Connection, path: Path) -> Schema:
    """The migrations that were run and those still pending. A database of a newer release, or of another program, is
    refused."""
    version = _check_in_transaction(db, path, newest=len(MIGRATIONS))
    return Schema(version=version, pending=NAMES[version:])


def _check_in_transaction(db: sqlite3.Connection, path: Path, *, newest: int) -> int:
    """Check within one transaction: this must not see a database that another process has half created."""
    db.execute("BEGIN")
    try:
        return _check(db, path, newest=newest)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _check(db: sqlite3.Connection, path: Path, *, newest: int) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    application = db.execute("PRAGMA application_id").fetchone()[0]
    is_empty = db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None
    if application != APPLICATION_ID and not (is_empty and version == 0):
        raise StoreUnusable(
            "store_not_a_database", f"{path} is a database of another program. Name another file for Holdfast's."
        )
    if version > newest:
        raise StoreUnusable(
            "store_newer",
            f"{path} was written by a newer release of Holdfast (schema {version}, this one knows {newest}). "
            "Upgrade Holdfast, or restore a backup from before the upgrade.",
        )
    return version


def _apply(db: sqlite3.Connection, migration: str, *, version: int) -> None:
    statement = ""
    for line in migration.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {version}")


def _use_wal(db: sqlite3.Connection) -> None:
    """Changing the journal mode does not wait for a lock, so two processes that start together must retry."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
