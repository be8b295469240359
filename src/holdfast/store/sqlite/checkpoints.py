"""Copies committed pages from the write-ahead log into the database, on a thread and a connection of its own, so that
no commit pays for it. Only the few pages that were written meanwhile are left to the writer: once everything is copied,
the log starts over in place, and a commit into blocks that the file already has is several times faster to sync."""

import sqlite3
import threading
from typing import Final

from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.files import DatabaseFiles

PASSIVE_BYTES: Final = 4 << 20
"""From this size on the log is copied, concurrently with readers and writers."""
RESTART_BYTES: Final = 64 << 20
"""From this size on writers and readers have to wait for a moment, so that the log can start over."""
PAUSE_SECONDS: Final = 0.1
RESTART_PATIENCE_SECONDS: Final = 0.05


class Checkpoints:
    """The checkpoint thread. It sleeps until enough was written."""

    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files
        self._bytes = 0
        self._enough = threading.Event()
        self._little_is_left = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def committed(self, size: int) -> None:
        """About `size` bytes were added to the log. (Only SQLite knows its true length: this process may not open
        SQLite's files itself, because closing them would drop SQLite's locks.)"""
        self._bytes += size
        if self._bytes >= PASSIVE_BYTES:
            self._bytes = 0
            self._enough.set()

    def finish(self, db: sqlite3.Connection) -> None:
        """Called by the writer between two transactions: copy the rest, if it is small. Never waits for a reader."""
        if self._little_is_left:
            self._little_is_left = False
            self._checkpoint(db, "PASSIVE")

    def stop(self) -> None:
        self._stopping.set()
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                db = self._files.connect(busy_seconds=RESTART_PATIENCE_SECONDS)
            except (sqlite3.Error, StoreUnavailable):
                # The files may come back; until then the next commit reports what is wrong with them.
                if self._stopping.wait(PAUSE_SECONDS):
                    return
            else:
                return self._copy_until_stopped(db)

    def _copy_until_stopped(self, db: sqlite3.Connection) -> None:
        try:
            page_bytes = int(db.execute("PRAGMA page_size").fetchone()[0])
            while True:
                self._enough.wait()
                if self._stopping.is_set():
                    self._checkpoint(db, "PASSIVE")  # The database file alone then holds everything, as people expect.
                    return
                self._enough.clear()
                self._copy(db, page_bytes)
                self._stopping.wait(PAUSE_SECONDS)
        finally:
            db.close()

    def _copy(self, db: sqlite3.Connection, page_bytes: int) -> None:
        frames = self._checkpoint(db, "PASSIVE")
        if frames * page_bytes >= RESTART_BYTES:
            self._checkpoint(db, "TRUNCATE")
        else:
            self._little_is_left = True

    def _checkpoint(self, db: sqlite3.Connection, mode: str) -> int:
        """Run a checkpoint, and return the number of frames in the log. A log that lost its name is not copied: another
        process may have started a new log for the same database."""
        try:
            self._files.check()
            return int(db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[1])
        except (sqlite3.Error, StoreUnavailable):
            return 0  # The log only grows meanwhile; the next commit reports what is wrong with the disk.
