"""The files of a database as this process has them open. A file that was deleted, moved or replaced can still be
written through an open connection, and such a write would never be found again: so the names are compared with the
opened files before any write is acknowledged."""

import logging
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.connections import BUSY_SECONDS, connect

SUFFIXES: Final = ("", "-wal", "-shm")
"""The database, its write-ahead log and the index of that log. SQLite keeps all three under the same inodes for as long
as any connection is open."""

CHANGED_LATER_NS: Final = 50_000_000
"""Two changes of a folder that are this far apart have different modification times: file systems take the time from
the system's clock, which advances every 10 ms at least."""

Identity = tuple[int, int]
"""Device and inode."""

FolderState = tuple[int, int, int]
"""Device and inode of the folder, and when a name in it was last created, removed or replaced."""

log = logging.getLogger(__name__)


class DatabaseFiles:
    """Opens the connections of one process, and checks that they still lead to the files under the database's name.

    The files are inspected by name only. Opening one of them would be a mistake: closing it again would drop the locks
    of every connection of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = os.fspath(path.parent)
        self._names = tuple(os.fspath(path) + suffix for suffix in SUFFIXES)
        self._opened: tuple[Identity | None, ...] | None = None
        self._unchanged: FolderState | None = None
        """While the folder is in this state, its names lead to the opened files."""
        self._saying = threading.Lock()
        self._is_lost = False

    @property
    def are_lost(self) -> bool:
        """Whether the last check found another file, or none, under one of the names."""
        return self._is_lost

    def connect(self, *, busy_seconds: float = BUSY_SECONDS, read_only: bool = False) -> sqlite3.Connection:
        """A connection to the files that the first call opened. Raises `StoreUnavailable` if they are lost, and creates
        no files."""
        if self._opened is not None:
            self.check()
        database = _identity(self._names[0])
        db = connect(self.path, busy_seconds=busy_seconds, read_only=read_only, must_exist=True)
        try:
            db.execute("PRAGMA schema_version").fetchone()  # The first read opens or creates the log and its index.
            if self._opened is None:
                self._opened = (database, *(_identity(name) for name in self._names[1:]))
            self.check()
        except BaseException:
            db.close()
            raise
        return db

    def check(self) -> None:
        """Raise `StoreUnavailable` if the files are lost."""
        loss = self.loss()
        if loss is not None:
            raise loss

    def loss(self) -> StoreUnavailable | None:
        """Why no write may be acknowledged; None while every name leads to the file that was opened. The system does
        not reuse an inode while this process has it open, so files that are put back are recognised.

        A name can't lead to another file without a change of the folder, so one `stat` of the folder usually
        suffices."""
        folder = _state(self._folder)
        if folder is not None and folder == self._unchanged:
            return None
        is_lost = tuple(_identity(name) for name in self._names) != self._opened
        if is_lost is not self._is_lost:
            self._note(is_lost=is_lost)
        self._unchanged = None if is_lost or folder is None or not _would_show(folder[2]) else folder
        return _lost(self.path) if is_lost else None

    def _note(self, *, is_lost: bool) -> None:
        with self._saying:
            if is_lost is self._is_lost:
                return  # Another thread noted it first.
            self._is_lost = is_lost
            if is_lost:
                log.critical("%s Until then every read and every write is refused.", _lost(self.path).message)
            else:
                log.warning("%s is back. Reads and writes go on.", self.path)


def _identity(name: str) -> Identity | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _state(folder: str) -> FolderState | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _would_show(changed_at: int) -> bool:
    """Whether a change from now on would get another modification time. A file system that keeps whole seconds is not
    trusted."""
    return changed_at % 1_000_000_000 != 0 and time.time_ns() - changed_at > CHANGED_LATER_NS


def _lost(path: Path) -> StoreUnavailable:
    return StoreUnavailable(
        "store_file_lost",
        f"The database {path}, or its -wal or -shm file, was deleted, moved or replaced while it was in use. "
        "Put the same file back, or end this process and start it on the database that you want.",
    )
