"""How processes learn of each other's death. Each process holds a lock on a file of its own for as long as it lives;
the operating system releases the lock however the process ends. The file is named by a random token, so a reused pid
means nothing."""

import fcntl
import os
import secrets
import subprocess
import sys
import time
from functools import cache
from pathlib import Path


def boottime_ms() -> int:
    """Milliseconds since the machine started, including sleep. Changes of the wall clock do not affect it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


@cache
def boot_id() -> str:
    """Identifies this boot of the machine: `boottime_ms` values of different boots can't be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        sysctl = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=False)
        return sysctl.stdout.decode().strip() or "unknown"
    return "unknown"


class Liveness:
    """This process's lock, and a check of other processes' locks."""

    def __init__(self, database: Path) -> None:
        self.token = secrets.token_hex(16)
        self.folder = database.with_name(database.name + ".live")
        """The folder of the lock files, known to all processes of the database and used by them alone."""
        self._file = self.folder / self.token
        self._descriptor: int | None = None

    def begin(self) -> None:
        """Take the lock. The file is renamed to its name once it is locked, so no process can see it unlocked."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        unseen = self.folder / f".{self.token}"
        descriptor = os.open(unseen, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(unseen, self._file)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor

    def begin_again_if_lost(self) -> None:
        """Take the lock again if its file is gone, because the folder was cleaned up: without its file this process
        would count as dead."""
        if self._descriptor is not None and not self._file.exists():
            self.begin()

    def end(self) -> None:
        """Release the lock at once and for good."""
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
            return False  # For example out of descriptors: a process whose lock can't be checked is not declared dead.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def bury(self, token: str) -> None:
        """Remove the lock file of a dead process."""
        (self.folder / token).unlink(missing_ok=True)

    def left_behind(self) -> list[str]:
        """The tokens of all lock files in the folder."""
        return [file.name for file in self.folder.iterdir() if not file.name.startswith(".")]
