"""Opens connections to a database file, and maps SQLite's failures to store errors."""

import os
import sqlite3
from pathlib import Path
from typing import Final

from holdfast.store.errors import StoreError, StoreUnavailable, StoreUnusable

BUSY_SECONDS: Final = 10.0
"""How long a write waits for another process's write before it fails as busy."""

APPLICATION_ID: Final = 0x486F6C64
"""Marks the database as Holdfast's in the file's header."""


def connect(
    path: Path, *, busy_seconds: float = BUSY_SECONDS, read_only: bool = False, must_exist: bool = False
) -> sqlite3.Connection:
    """A connection without automatic commits or checkpoints: checkpoints have a thread of their own. A missing file is
    created, unless it `must_exist`."""
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw" if must_exist else path,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=must_exist,
    )
    try:
        db.execute("PRAGMA synchronous = FULL")  # SQLite may have been built with another default.
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")
        db.execute("PRAGMA trusted_schema = OFF")
        if read_only:
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def create_if_missing(path: Path) -> None:
    """Create the file and its folders, for this user only, and sync each parent folder. SQLite syncs the folder only
    for files that it creates itself; without this sync, acknowledged writes could be lost together with the file's
    name."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # A parent folder that this user may not read can't be synced either.
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # Some file systems can't sync a folder, and keep its names anyway.
    finally:
        os.close(descriptor)


def refuse_folder(path: Path) -> None:
    """Raise if the path is a folder. Never open the database file itself to inspect it: closing it would drop the locks
    of every connection that this process has to it."""
    if path.is_dir():
        raise StoreUnusable("store_not_a_database", f"{path} is a folder. Name a file for the database.")


def unusable(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """Why the database could not be opened, and what to do."""
    code = _primary(error)
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreUnusable("store_corrupt", f"{path} is damaged ({error}). Restore a backup of it.")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreUnusable("store_not_a_database", f"{path} is not a Holdfast database. Name another file.")
    if code == sqlite3.SQLITE_READONLY or isinstance(error, PermissionError) or _is_locked_away(path):
        return StoreUnusable("store_read_only", f"{path} can't be written. Make the file and its folder writable.")
    if code == sqlite3.SQLITE_CANTOPEN or isinstance(error, OSError):
        return StoreUnusable("store_not_found", f"{path} can't be opened ({error}). Check the path.")
    return unavailable(error)


def unavailable(error: BaseException) -> StoreError:
    """Why a read or a write failed, and what to do."""
    code = _primary(error)
    if isinstance(error, StoreError):
        return error
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable("store_disk_full", "The disk is full. Free some space and try again.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable("store_busy", "Another process has locked the database for too long. Try again.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreUnavailable("store_failed", f"The database is damaged ({error}). Restore a backup of it.")
    return StoreUnavailable("store_failed", f"The database failed: {error}.")


def is_busy(error: BaseException) -> bool:
    """Whether another connection holds the lock."""
    return _primary(error) == sqlite3.SQLITE_BUSY


def is_in_doubt(error: BaseException) -> bool:
    """Whether a commit that raised this may be on disk all the same."""
    return _primary(error) not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT)


def _primary(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_locked_away(path: Path) -> bool:
    return not os.access(path if path.exists() else path.parent, os.W_OK) or not os.access(path.parent, os.W_OK)
