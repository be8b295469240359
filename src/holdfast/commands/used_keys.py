"""The keys of removed commands. A key stays used after its command's records are gone, so that a process which was
frozen just before its request to start the command starts nothing when it wakes up.

used/KEY    an empty file for each key, whose name tells nothing about the command
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.commands.folder import sync_directory

USED: Final = "used"


class UsedKeys:
    """The used keys of one commands folder, by `CommandKey.name`."""

    def __init__(self, root: Path) -> None:
        self._path = root / USED

    def prepare(self) -> None:
        """Creates the folder of the marks, before a full disk could prevent it."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self._path.parent)

    def __contains__(self, name: str) -> bool:
        """Raises `OSError` if that can't be known, so that nothing is started."""
        try:
            os.lstat(self._path / name)
        except FileNotFoundError:
            return False
        return True

    def add(self, names: Iterable[str]) -> None:
        """Marks keys as used. A crash before the last sync leaves some marked: their commands are still there, and a
        repeated removal marks the others. After it, all marks survive a power loss."""
        if not self._path.exists():
            self.prepare()
        for name in names:
            os.close(os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync_directory(self._path)

    def remove_older_than(self, time: float) -> None:
        """Removes the marks that were made before `time`, in seconds since the epoch."""
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_mtime < time:
                    os.unlink(entry.path)
