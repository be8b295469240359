"""A PostgreSQL whose power is cut: all its processes are killed at once, so that unflushed data is lost with its
memory. Its WAL writer, which flushes commits that no client waits for, is held back; then only a commit that waits for
its own flush survives. Writes that the operating system accepted from PostgreSQL are not discarded: with `fsync` on,
they are PostgreSQL's own responsibility."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from proof.postgres_server import PATIENCE_SECONDS, PostgresServer, as_nobody

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "wal_writer_delay": "10s",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


@contextlib.contextmanager
def cut_server() -> Iterator["CutServer"]:
    """A new one, which nothing is left of afterwards."""
    with PostgresServer(settings=SETTINGS) as made:
        server = CutServer(made.url())
        server.hold_back()
        try:
            yield server
        finally:
            server.kill()


class CutServer:
    """Known by its URL to every process of a campaign: each may cut its power, and starts it again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = Path(parse_qs(urlsplit(url).query)["host"][0])
        self._data = self._folder / "data"
        self._started: subprocess.Popen[bytes] | None = None

    def cut(self) -> None:
        """Cut the power, and give it back: returns once it takes connections."""
        self.kill()
        self._start()
        self.hold_back()

    def kill(self) -> None:
        """Stop the parent first: it would restart its children, or end them in good order."""
        parent = self._pid()
        os.kill(parent, signal.SIGSTOP)
        processes = [*_children(parent), parent]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        _until(lambda: not any(map(_runs, processes)))
        if self._started is not None:
            self._started.wait()
        # They name a process that its own parent may not have waited for yet.
        for left in (self._data / "postmaster.pid", *self._folder.glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)

    def hold_back(self) -> None:
        """Stop the process that flushes commits which no client waits for."""
        found: list[int] = []

        def is_found() -> bool:
            found[:] = [child for child in _children(self._pid()) if b"walwriter" in _read(child, "cmdline")]
            return bool(found)

        _until(is_found)
        os.kill(found[0], signal.SIGSTOP)

    def _start(self) -> None:
        command = shlex.split((self._data / "postmaster.opts").read_text())
        with (self._folder / "log").open("ab") as log:
            self._started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **as_nobody()
            )
        _until(self._is_ready)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[-1].strip() == "ready"
        return False

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("PostgreSQL did not do what it was expected to")
        time.sleep(0.005)


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            after_the_name = _read(int(folder.name), "stat").rpartition(b")")[2].split()
            if len(after_the_name) > 1 and int(after_the_name[1]) == parent:
                found.append(int(folder.name))
    return found


def _runs(process: int) -> bool:
    """A zombie does not: its parent just has not asked for it yet."""
    return _read(process, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def _read(process: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""
