"""How processes know of each other's death. Each holds a lock on a file of its own for as long as it lives; the system
lets go of it however the process ends. The file is named by a random token, so a pid that comes again means nothing."""

import fcntl
import os
import secrets
import subprocess
import sys
import time
from functools import cache
from pathlib import Path


def boottime_ms() -> int:
    """Milliseconds since the machine started, sleep included: no change of the wall clock moves it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


@cache
def boot_id() -> str:
    """Names this start of the machine: `boottime_ms` of another one can't be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        asked = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=False)
        return asked.stdout.decode().strip() or "unknown"
    return "unknown"


class Liveness:
    """This process's own lock, and a look at those of the others."""

    def __init__(self, database: Path) -> None:
        self.token = secrets.token_hex(16)
        self.folder = database.with_name(database.name + ".live")
        """Known to all processes of the database, and theirs alone."""
        self._file = self.folder / self.token
        self._descriptor: int | None = None

    def begin(self) -> None:
        """Take the lock. The file gets its name once it is locked: nobody can see it free."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        unseen = self.folder / f".{self.token}"
        descriptor = os.open(unseen, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(unseen, self._file)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor

    def begin_again_if_lost(self) -> None:
        """Somebody may have cleaned up the folder: without its file this process would count as dead."""
        if self._descriptor is not None and not self._file.exists():
            self.begin()

    def end(self) -> None:
        """Let go, at once and for good."""
        if self._descriptor is None:
            return
        self._file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def is_dead(self, token: str) -> bool:
        """Whether the process of that token has ended. A process that is only stopped has not."""
        try:
            descriptor = os.open(self.folder / token, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # Out of descriptors, say: who can't be asked is not declared dead.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def bury(self, token: str) -> None:
        """Remove what a dead process left."""
        (self.folder / token).unlink(missing_ok=True)

    def left_behind(self) -> list[str]:
        """Tokens of all files that are there."""
        return [file.name for file in self.folder.iterdir() if not file.name.startswith(".")]
