"""Runs reads on threads and connections of their own. Each read is one transaction, and so sees one snapshot."""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast.store.sqlite.connections import unavailable
from holdfast.store.sqlite.files import DatabaseFiles

READERS: Final = 2

Read = Callable[[sqlite3.Connection], Any]


class Readers:
    """A small pool of threads that take reads from one queue."""

    def __init__(self, files: DatabaseFiles, loop: asyncio.AbstractEventLoop) -> None:
        self._files = files
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[asyncio.Future[Any], Read] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"holdfast-reader-{number}", daemon=True)
            for number in range(READERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, future: asyncio.Future[Any], read: Read) -> None:
        self._queue.put((future, read))

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while (job := self._queue.get()) is not None:
            future, read = job
            try:
                if db is None:
                    db = self._files.connect(read_only=True)
                result, error = _in_one_snapshot(db, read), None
                self._files.check()
            except Exception as caught:
                result, error = None, unavailable(caught) if isinstance(caught, sqlite3.Error) else caught
            self._tell(future, result, error)
            del future, read, result, error, job
        if db is not None:
            db.close()

    def _tell(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:
            pass  # The loop is closed: no caller waits any more.


def _in_one_snapshot(db: sqlite3.Connection, read: Read) -> Any:
    db.execute("BEGIN")
    try:
        return read(db)
    finally:
        db.execute("ROLLBACK")


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
