"""The operations of a process on its database files, in order. Each is recorded before it takes place, in a file that
survives the process, so that the disk can be rebuilt as a power cut would have left it."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_HEAD: Final = struct.Struct("<BQQI")
"""Kind, number of the open file, offset or size, length of what follows."""


class Opened(msgspec.Struct, frozen=True):
    """A file was opened, or made, and has a number from now on."""

    file: int
    name: str
    is_new: bool


class Written(msgspec.Struct, frozen=True):
    file: int
    offset: int
    data: bytes


class Truncated(msgspec.Struct, frozen=True):
    file: int
    size: int


class SyncBegun(msgspec.Struct, frozen=True):
    """Earlier writes to the file are on disk when the sync has ended."""

    file: int


class SyncEnded(msgspec.Struct, frozen=True):
    file: int


class Deleted(msgspec.Struct, frozen=True):
    name: str
    is_synced: bool
    """The folder was synced right after."""


Record = Opened | Written | Truncated | SyncBegun | SyncEnded | Deleted

_OPENED, _MADE, _WRITTEN, _TRUNCATED, _SYNC_BEGUN, _SYNC_ENDED, _DELETED, _DELETED_AND_SYNCED = range(8)


class Recorder:
    """The file of one process. Each record is one write, so that threads do not mix theirs."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def add(self, record: Record) -> None:
        match record:
            case Opened(file, name, is_new):
                self._write(_MADE if is_new else _OPENED, file, 0, os.fsencode(name))
            case Written(file, offset, data):
                self._write(_WRITTEN, file, offset, data)
            case Truncated(file, size):
                self._write(_TRUNCATED, file, size)
            case SyncBegun(file):
                self._write(_SYNC_BEGUN, file)
            case SyncEnded(file):
                self._write(_SYNC_ENDED, file)
            case Deleted(name, is_synced):
                self._write(_DELETED_AND_SYNCED if is_synced else _DELETED, 0, 0, os.fsencode(name))

    def _write(self, kind: int, file: int, number: int = 0, data: bytes = b"") -> None:
        os.write(self._descriptor, _HEAD.pack(kind, file, number, len(data)) + data)


def read(path: Path) -> Iterator[Record]:
    """All records, in order. The kill may have cut the last one short: then its operation had not begun."""
    content = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _HEAD.size <= len(content):
        kind, file, number, length = _HEAD.unpack_from(content, at)
        data = content[at + _HEAD.size : at + _HEAD.size + length]
        at += _HEAD.size + length
        if len(data) == length:
            yield _record(kind, file, number, data)


def _record(kind: int, file: int, number: int, data: bytes) -> Record:
    match kind:
        case 0 | 1:
            return Opened(file, os.fsdecode(data), kind == _MADE)
        case 2:
            return Written(file, number, data)
        case 3:
            return Truncated(file, number)
        case 4:
            return SyncBegun(file)
        case 5:
            return SyncEnded(file)
        case _:
            return Deleted(os.fsdecode(data), kind == _DELETED_AND_SYNCED)
