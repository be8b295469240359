"""A consistent copy of the whole database, made while it is in use."""

import contextlib
import os
import sqlite3
from pathlib import Path

from holdfast.store.sqlite.connections import connect


def back_up(path: Path, target: Path) -> None:
    """Copy to a temporary file beside the target, and link it to the target's name once it is complete and on disk."""
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already. Name a file that does not exist.")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(connect(path)) as source, contextlib.closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)
        _sync(partial)
        os.link(partial, target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
