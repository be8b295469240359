"""A turnstile with which the writers of several processes take turns.

SQLite itself has no queue: a process that waits for the write lock sleeps and retries, ever more rarely, while a busy
process takes the lock again right after each commit. So a process enters the turnstile before it asks for SQLite's
lock, and stays in it until it has that lock; meanwhile no other process can enter, including the one that just
committed.

The turnstile is only about fairness. A process that is stopped inside it is bypassed after a moment; SQLite's own lock
keeps writes apart."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.0005
"""The pause between two tries while another process is in the turnstile."""
PATIENCE_SECONDS: Final = 1.0
"""A process that stays in the turnstile for longer has most likely been stopped."""
PASSED_BY_SECONDS: Final = 10.0
"""For how long the turnstile is then bypassed."""


class Turnstile:
    """An OS lock on a folder that all processes of a database know; the system releases it when a process ends.

    Inside `with turnstile:` this process is the next to get SQLite's lock, unless the turnstile had to be bypassed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._is_in = False
        self._left_out_until = 0.0

    def __enter__(self) -> None:
        self._is_in = self._enter()

    def __exit__(self, *_: object) -> None:
        if self._is_in and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _enter(self) -> bool:
        if self._left_out_until and time.monotonic() < self._left_out_until:
            return False
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            return self._locked(self._descriptor)
        except OSError:
            self._leave_out()  # Without a folder, or without locks, writers compete for SQLite's lock.
            return False

    def _locked(self, descriptor: int) -> bool:
        until = 0.0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                until = until or now + PATIENCE_SECONDS
                if now >= until:
                    self._leave_out()
                    return False
                time.sleep(LOOK_SECONDS)
            else:
                return True

    def _leave_out(self) -> None:
        self._left_out_until = time.monotonic() + PASSED_BY_SECONDS
