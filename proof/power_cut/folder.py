"""The database folder of a power-cut trial: before each process but the first, the files are rewritten to a state that
a cut at the end of the previous process may have left."""

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Final

from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.files import SUFFIXES
from proof.power_cut.disk import Disk
from proof.power_cut.records import read

DATABASE: Final = "holdfast.db"
NAMES: Final = tuple(DATABASE + suffix for suffix in (*SUFFIXES, "-journal"))
INDEX: Final = DATABASE + "-shm"
"""Never synced, and made anew from the log."""


def records_of(folder: Path, process: int) -> Path:
    """The file in which a process of the trial records its file operations."""
    return folder / f"disk-{process}"


def damage(folder: Path) -> str | None:
    """SQLite's report of damage in the database; None if it is intact."""
    try:
        with contextlib.closing(connect(folder / DATABASE, read_only=True)) as db:
            found = [str(line) for (line,) in db.execute("PRAGMA integrity_check")]
    except sqlite3.Error as error:
        return str(error)
    return None if found == ["ok"] else "; ".join(found)


class ForgetfulFolder:
    """Rewrites the files between two processes of a trial. A process that ended by itself loses power as well, unless
    it was the last."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._process = 0
        self._files: dict[str, bytes] = {}
        self.cuts = 0

    def begin(self, process: int) -> None:
        """Called before the process of that number is started."""
        if self._process:
            self._cut()
        self._process = process
        self._files = {name: path.read_bytes() for name in NAMES if (path := self._folder / name).exists()}

    def _cut(self) -> None:
        disk = Disk({name: content for name, content in self._files.items() if name != INDEX})
        records = records_of(self._folder, self._process)
        disk.play(read(records))
        records.unlink(missing_ok=True)
        left = disk.after_a_cut(random.Random(f"{self._seed} {self._process}"))
        for name in NAMES:
            (self._folder / name).unlink(missing_ok=True)
        for name, content in left.items():
            (self._folder / name).write_bytes(content)
        self.cuts += 1
