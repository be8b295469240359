"""Makes SQLite record every operation on its files. In this process, a copy replaces the default VFS of the library
that Python's `sqlite3` uses; the files of the copy record writes, truncations, syncs and deletions, and then perform
them. Nothing has to be compiled: the tables of functions that SQLite calls are changed in place."""

import _sqlite3
import ctypes
import itertools
import os
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p, cast
from pathlib import Path
from typing import Any, Final

from proof.power_cut.records import (
    Deleted,
    Opened,
    Recorder,
    SyncBegun,
    SyncEnded,
    Truncated,
    Written,
)

FAILED: Final = 10
"""SQLITE_IOERR: a bug of ours in a callback must not look like success."""

_Reach = Callable[[str], None]


class _Methods(Structure):
    """`sqlite3_io_methods`, the functions of an open file. Functions that are not recorded stay plain pointers."""


_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)

_Methods._fields_ = [
    ("iVersion", c_int),
    ("xClose", c_void_p),
    ("xRead", c_void_p),
    ("xWrite", _WRITE),
    ("xTruncate", _TRUNCATE),
    ("xSync", _SYNC),
    *((name, c_void_p) for name in ("xFileSize", "xLock", "xUnlock", "xCheckReservedLock", "xFileControl")),
    *((name, c_void_p) for name in ("xSectorSize", "xDeviceCharacteristics")),
    *((name, c_void_p) for name in ("xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch")),
]


class _OpenFile(Structure):
    """`sqlite3_file`: what follows the pointer is the VFS's own."""

    _fields_ = [("pMethods", POINTER(_Methods))]


class _Vfs(Structure):
    """`sqlite3_vfs`, the functions of a file system."""


# Names are passed on as the pointers that they are: SQLite keeps them, and reads parameters from behind their end.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(_OpenFile), c_int, POINTER(c_int))
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)

_Vfs._fields_ = [
    ("iVersion", c_int),
    ("szOsFile", c_int),
    ("mxPathname", c_int),
    ("pNext", c_void_p),
    ("zName", c_char_p),
    ("pAppData", c_void_p),
    ("xOpen", _OPEN),
    ("xDelete", _DELETE),
    *((name, c_void_p) for name in ("xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose")),
    *((name, c_void_p) for name in ("xRandomness", "xSleep", "xCurrentTime", "xGetLastError")),
    *((name, c_void_p) for name in ("xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall", "xNextSystemCall")),
]


class Unavailable(Exception):
    """This Python's SQLite can't be made to record, for instance because it is linked into the interpreter."""


def library() -> ctypes.CDLL:
    """The SQLite library that `sqlite3` uses, not another copy on this machine."""
    try:
        found = ctypes.CDLL(_sqlite3.__file__)
        found.sqlite3_libversion.restype = c_char_p
        version = found.sqlite3_libversion()
    except (AttributeError, OSError) as error:
        raise Unavailable(f"SQLite's functions can't be found in {_sqlite3}: {error}") from None
    if version.decode() != sqlite3.sqlite_version:
        raise Unavailable(f"found SQLite {version.decode()}, Python uses {sqlite3.sqlite_version}")
    return found


_alive: list[Any] = []
"""Keeps objects that SQLite points to. They are never freed: the process is about to be killed."""


class RecordingVfs:
    """Installed once in a process, before its first connection. `reach` is called with the name of each operation,
    after it was recorded; it may kill the process."""

    def __init__(self, database: Path, recorder: Recorder, reach: _Reach) -> None:
        self._database = os.fsencode(database)
        self._recorder = recorder
        self._reach = reach
        self._numbers = itertools.count(1)
        self._files: dict[int, tuple[int, str]] = {}
        """Number and kind of each open file, by its address."""
        self._tables: dict[int, tuple[_Methods, _Methods]] = {}
        """For each table of functions that SQLite uses: the original and the one that records, by its address."""

    def install(self) -> None:
        sqlite = library()
        sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
        sqlite.sqlite3_vfs_find.argtypes = (c_char_p,)
        sqlite.sqlite3_vfs_register.argtypes = (POINTER(_Vfs), c_int)
        self._original = sqlite.sqlite3_vfs_find(None).contents
        copy = _Vfs.from_buffer_copy(self._original)
        copy.zName = b"holdfast-power-cut"
        copy.pNext = None
        copy.xOpen = _OPEN(self._open)
        copy.xDelete = _DELETE(self._delete)
        _alive.extend((self, copy))
        if sqlite.sqlite3_vfs_register(byref(copy), 1) != 0:
            raise Unavailable("SQLite refused the recording VFS")

    # Functions that SQLite calls

    def _open(self, vfs: int, pointer: int | None, file: Any, flags: int, given: Any) -> int:
        name = ctypes.string_at(pointer) if pointer else b""
        is_new = not os.path.exists(name)
        done: int = self._original.xOpen(vfs, pointer, file, flags, given)
        if done != 0 or not name.startswith(self._database):
            return done
        address = cast(file, c_void_p).value
        methods = file.contents.pMethods
        if address is None or not methods:
            return FAILED
        number, suffix = next(self._numbers), name[len(self._database) :].decode()
        self._files[address] = (number, {"": "database", "-wal": "log"}.get(suffix, suffix.strip("-")))
        self._recorder.add(Opened(number, os.path.basename(os.fsdecode(name)), is_new))
        file.contents.pMethods = ctypes.pointer(self._recording(methods))
        return 0

    def _delete(self, vfs: int, pointer: int, sync_folder: int) -> int:
        name = ctypes.string_at(pointer)
        if name.startswith(self._database) and os.path.exists(name):
            self._recorder.add(Deleted(os.path.basename(os.fsdecode(name)), bool(sync_folder)))
            self._reach("disk:delete")
        done: int = self._original.xDelete(vfs, pointer, sync_folder)
        return done

    def _recording(self, methods: Any) -> _Methods:
        """The table of functions that records, made once for each that SQLite uses."""
        address = ctypes.addressof(methods.contents)
        if address not in self._tables:
            original = _Methods.from_buffer_copy(methods.contents)
            table = _Methods.from_buffer_copy(original)
            table.xWrite = _WRITE(self._writer(original))
            table.xTruncate = _TRUNCATE(self._truncater(original))
            table.xSync = _SYNC(self._syncer(original))
            self._tables[address] = (original, table)
        return self._tables[address][1]

    def _writer(self, original: _Methods) -> Callable[[int, int, int, int], int]:
        def write(file: int, data: int, length: int, offset: int) -> int:
            number, kind = self._files[file]
            self._recorder.add(Written(number, offset, ctypes.string_at(data, length)))
            self._reach(f"disk:{kind} write")
            done: int = original.xWrite(file, data, length, offset)
            return done

        return write

    def _truncater(self, original: _Methods) -> Callable[[int, int], int]:
        def truncate(file: int, size: int) -> int:
            number, kind = self._files[file]
            self._recorder.add(Truncated(number, size))
            self._reach(f"disk:{kind} truncate")
            done: int = original.xTruncate(file, size)
            return done

        return truncate

    def _syncer(self, original: _Methods) -> Callable[[int, int], int]:
        def sync(file: int, flags: int) -> int:
            number, kind = self._files[file]
            self._recorder.add(SyncBegun(number))
            self._reach(f"disk:{kind} sync:before")
            done: int = original.xSync(file, flags)
            if done == 0:
                self._recorder.add(SyncEnded(number))
                self._reach(f"disk:{kind} sync:after")
            return done

        return sync
