"""A disk that forgets. Its input is the recorded operations of a process on its files; its output is a state that a
power cut at their end could have left: everything that was synced, and any part of the rest, in any order, sector by
sector."""

import random
from collections.abc import Iterable, Mapping
from typing import Final

from proof.power_cut.records import (
    Deleted,
    Opened,
    Record,
    SyncBegun,
    SyncEnded,
    Truncated,
    Written,
)

SECTOR_BYTES: Final = 512
"""The unit that a disk writes atomically."""

Change = Written | Truncated


class _File:
    """One inode: its content that is certainly on disk, and the operations since then, in order."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.pending: list[Change] = []
        self.under_sync: dict[int, int] = {}
        """How many of the pending changes each sync under way covers, by the number of the open file."""
        self.is_named = True
        """Its name is on disk for certain."""

    def sync(self, number: int) -> None:
        covered = self.under_sync.pop(number)
        for change in self.pending[:covered]:
            _change(self.durable, change)
        del self.pending[:covered]
        self.under_sync = {other: max(0, count - covered) for other, count in self.under_sync.items()}

    def after_a_cut(self, chance: random.Random, keeps: float) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            for part in _parts(change):
                if chance.random() < keeps:
                    _change(content, part)
        return bytes(content)


class Disk:
    """The files of one folder at the start of a process, and the operations of that process on them."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._names: dict[str, _File] = {name: _File(content) for name, content in files.items()}
        self._durable_names = dict(self._names)
        self._renaming: list[tuple[str, _File | None]] = []
        """Names given and taken since the folder was last synced, in order."""
        self._open: dict[int, _File] = {}
        self.writes = 0
        self.syncs = 0

    def play(self, records: Iterable[Record]) -> None:
        for record in records:
            self._take(record)

    def after_a_cut(self, chance: random.Random) -> dict[str, bytes]:
        """One of the many states that the power cut may have left. Often all or none of the unsynced operations
        survive."""
        keeps = chance.choice((0.0, 0.0, 0.5, 0.9, 1.0, chance.random()))
        names = dict(self._durable_names)
        for name, file in self._renaming[: chance.randint(0, len(self._renaming))]:
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        return {name: file.after_a_cut(chance, keeps) for name, file in names.items()}

    def _take(self, record: Record) -> None:
        match record:
            case Opened(number, name, is_new):
                self._open[number] = self._opened(name, is_new=is_new)
            case Written(number):
                self.writes += 1
                self._open[number].pending.append(record)
            case Truncated(number):
                self._open[number].pending.append(record)
            case SyncBegun(number):
                self._open[number].under_sync[number] = len(self._open[number].pending)
            case SyncEnded(number):
                self.syncs += 1
                self._synced(number, self._open[number])
            case Deleted(name, is_synced):
                self._names.pop(name, None)
                self._renaming.append((name, None))
                if is_synced:
                    self._sync_folder()

    def _opened(self, name: str, *, is_new: bool) -> _File:
        found = self._names.get(name)
        if found is not None and not is_new:
            return found
        made = self._names[name] = _File()
        if is_new:
            made.is_named = False
            self._renaming.append((name, made))
        else:
            # The program made it, and synced its folder, before SQLite ever saw it.
            self._durable_names[name] = made
        return made

    def _synced(self, number: int, file: _File) -> None:
        """SQLite syncs the folder along with the first sync of a journal or a log that it made."""
        file.sync(number)
        if not file.is_named:
            file.is_named = True
            self._sync_folder()

    def _sync_folder(self) -> None:
        self._durable_names = dict(self._names)
        self._renaming.clear()


def _change(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncated):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    content.extend(bytes(max(0, change.offset - len(content))))
    content[change.offset : change.offset + len(change.data)] = change.data


def _parts(change: Change) -> Iterable[Change]:
    """The parts of a change that may survive separately: a write is split into sectors."""
    if isinstance(change, Truncated):
        yield change
        return
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        until = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield Written(change.file, at, change.data[at - change.offset : until - change.offset])
        at = until
