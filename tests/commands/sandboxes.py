"""Real sandboxes, with a data directory to hide; and whether they can be made on this machine: bubblewrap is installed
for it where that is possible.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from holdfast.commands.bubblewrap import UNFILTERED, Bubblewrap
from holdfast.commands.command import Limits, Spec
from holdfast.commands.commands import Commands
from holdfast.commands.errors import IsolationUnavailable
from tests.commands.world import everything, ran

PYTHON = os.path.realpath(sys.executable)
"""Not that of an environment below /tmp, which is another folder in a sandbox."""

QUICKLY = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "DPkg::Lock::Timeout=60")


class Sandbox:
    """A data directory with a database in it, which commands must not see, and a directory that they work in."""

    def __init__(self, place: Path, commands: Path) -> None:
        self.place = place
        self.commands = commands
        self.commands.mkdir(mode=0o700)
        self.data = place / "data"
        self.data.mkdir()
        self.database = self.data / "holdfast.db"
        self.database.write_text("all sessions")
        self.log = self.data / "holdfast.db-wal"
        self.work = place / "work"
        self.work.mkdir()

    def spec(
        self,
        command: str,
        *,
        directory: Path | None = None,
        root: Path | None = None,
        network: bool = True,
        hidden: tuple[Path, ...] = (),
        writable: tuple[Path, ...] = (),
        merged: bool = False,
        limits: Limits | None = None,
        environment: dict[str, str] | None = None,
    ) -> Spec:
        bubblewrap = Bubblewrap(network=network, hidden=(self.data, self.commands, *hidden), writable=writable)
        here = str(directory or self.work)
        return Spec(
            command=command,
            directory=str(root or here),
            wrapper=bubblewrap.program,
            inside=bubblewrap.inside(here, root=str(root or "")),
            filter=bubblewrap.filter,
            merged=merged,
            limits=limits or Limits(),
            environment=environment or {},
        )


async def said(commands: Commands, sandbox: Sandbox, command: str, **how: object) -> str:
    """The output of a command in the sandbox, with its errors."""
    key, _ = await ran(commands, sandbox.spec(command, merged=True, **how))  # type: ignore[arg-type]
    return (await everything(commands, key)).decode()


@cache
def why_not() -> str:
    """Empty if they can."""
    _install_if_missing()
    try:
        asyncio.run(Bubblewrap(network=False, hidden=()).check())
    except IsolationUnavailable as error:
        if f"exit code {UNFILTERED}" in error.message:
            raise  # A filter that the kernel takes, and that does not hold, is no reason to skip the tests of it.
        return error.message
    return ""


def _install_if_missing() -> None:
    """Only one process at a time: all of a test run come here at once."""
    with open(Path(tempfile.gettempdir(), f"holdfast-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which("bwrap") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
            _apt_get("install", "-y", "bubblewrap") or (_apt_get("update") and _apt_get("install", "-y", "bubblewrap"))


def _apt_get(*words: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    line = ["apt-get", *QUICKLY, *words]
    return (
        subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
        == 0
    )
