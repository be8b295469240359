"""How the writers of several processes take turns. SQLite itself has no queue: a process that waits for the write lock
sleeps and tries again, ever more rarely, while a busy one takes the lock anew right after each commit. Here a process
passes a turnstile before it asks SQLite: it stays in it until it has SQLite's lock, and nobody else can pass meanwhile,
the process that just committed neither.

The turnstile is only about fairness. A process that stands still in it is passed by after a moment; what keeps writes
apart is SQLite's own lock."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.0005
"""Between two tries, while another process is in the turnstile."""
PATIENCE_SECONDS: Final = 1.0
"""What takes longer to pass has most likely been stopped."""
PASSED_BY_SECONDS: Final = 10.0
"""For how long the turnstile is then left out."""


class Turnstile:
    """An OS lock on a folder that all processes of a database know; the system frees it when a process ends.

    Inside `with turnstile:` this process is the next to get SQLite's lock, unless the turnstile had to be left out."""

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
            self._leave_out()  # Without a folder, or without locks, writers take their chances.
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
