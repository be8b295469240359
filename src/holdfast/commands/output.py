"""The output of a command, on disk, by byte offset. The supervisor appends; any process may read at the same time.

    output          everything, up to the limit
    output.N        the output from offset N on, an eighth of the limit each
    output.cut      exists once the middle is gone: then only the first half of the limit counts in `output`
    output.streams  where one stream takes over from the other: offset * 4 + stream, eight bytes each

Offsets count the bytes that the command wrote, and stay valid when the middle is dropped.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.commands.command import Stream

STDOUT: Final = 0
STDERR: Final = 1
EITHER: Final = 2
"""From here on the stream is unknown: the two alternated too often."""

MAX_TURNS: Final = 1_000_000
"""Entries of the stream index, eight bytes each. Without a bound, a command that alternates byte by byte would write
more index than output."""

KEPT_PIECES: Final = 4
"""Pieces kept at the end: half of the limit (four eighths). The other half is the beginning."""

_TURN: Final = struct.Struct("<Q")


class OutputWriter:
    """Appends to the output of one command. Only the supervisor that started the command has one."""

    def __init__(self, folder: Path, ceiling: int) -> None:
        self.size = 0
        self._folder = folder
        self._ceiling = max(ceiling, 16)
        self._room = self._ceiling
        self._pieces: list[Path] = []
        self._descriptor = self._opened(folder / "output")
        self._streams = -1
        self._stream = STDOUT
        self._turns = 0

    def append(self, data: bytes, stream: int) -> int:
        """Returns how many bytes were written: fewer than all if the disk is full in between. Raises `OSError` if none
        were."""
        self._note(stream)
        view = memoryview(data)
        try:
            while view:
                if not self._room:
                    self._next_piece()
                written = os.write(self._descriptor, view[: self._room])
                self.size += written
                self._room -= written
                view = view[written:]
        except OSError:
            if len(view) == len(data):
                raise
        return len(data) - len(view)

    @property
    def is_over_ceiling(self) -> bool:
        return self.size > self._ceiling

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._streams >= 0:
            os.close(self._streams)

    def _note(self, stream: int) -> None:
        """Records a change of stream before its bytes are written: a crash in between leaves a last entry without
        bytes."""
        if stream == self._stream or self._stream == EITHER:
            return
        self._turns += 1
        turn = stream if self._turns < MAX_TURNS else EITHER
        if self._streams < 0:
            self._streams = self._opened(self._folder / "output.streams")
        os.write(self._streams, _TURN.pack(self.size * 4 + turn))
        self._stream = turn

    def _next_piece(self) -> None:
        if len(self._pieces) == KEPT_PIECES:
            self._drop_oldest()
        piece = self._folder / f"output.{self.size}"
        following = self._opened(piece)
        os.close(self._descriptor)
        self._descriptor = following
        self._pieces.append(piece)
        self._room = self._ceiling // 8

    def _drop_oldest(self) -> None:
        """Marks the output as cut, then removes the oldest piece: a crash in between loses no byte that a reader still
        expects."""
        cut = self._folder / "output.cut"
        if not cut.exists():
            os.close(self._opened(cut))
            half = self._ceiling // 2
            os.truncate(self._folder / "output", half)
            self._mark(half)
        self._pieces[0].unlink(missing_ok=True)
        del self._pieces[0]

    def _mark(self, half: int) -> None:
        """Appends a note for people who open the plain file. `OutputReader` knows that it is not output."""
        with open(self._folder / "output", "ab") as file:
            file.write(
                f"\n[holdfast: more than {self._ceiling} bytes were written. Only the first {half} are in this file; "
                f"the last ones are in the files output.N beside it, from byte N on; the middle is gone.]\n".encode()
            )

    @staticmethod
    def _opened(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class OutputChunk(msgspec.Struct, frozen=True):
    """Bytes of the output from an offset on. If `offset` is larger than requested, the bytes between are gone."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Run(msgspec.Struct, frozen=True):
    """A range of consecutive bytes from one stream."""

    start: int
    end: int
    stream: int


class OutputReader:
    """Reads the output of one command, also while it is written. Keeps no file open."""

    def __init__(self, folder: Path, ceiling: int) -> None:
        self._folder = folder
        self._half = max(ceiling, 16) // 2

    @property
    def size(self) -> int:
        return max((start + length for start, length, _ in self._files()), default=0)

    @property
    def changed_at(self) -> float:
        """Wall-clock time of the last write; 0 if there is no output."""
        times = [path.stat().st_mtime for path in self._folder.glob("output*") if _number(path.name) is not None]
        return max(times, default=0.0)

    def read(self, offset: int, length: int) -> OutputChunk:
        """Returns at most `length` bytes from `offset` on, or from where the output resumes. Empty: nothing was written
        there yet."""
        while True:
            cut = self._is_cut()
            chunk = self._read_once(max(offset, 0), max(length, 0))
            # The middle may have been dropped during the read, and replaced by the note for people.
            if self._is_cut() == cut:
                return chunk

    def read_stream(self, stream: Stream, offset: int, length: int) -> OutputChunk:
        """Like `read` for a single stream, with offsets that count only the bytes of that stream."""
        if stream == "both":
            return self.read(offset, length)
        number = STDOUT if stream == "stdout" else STDERR
        passed, start, data = 0, offset, bytearray()
        for run in self.runs():
            if run.stream not in (number, EITHER):
                continue
            inside = max(offset - passed, 0)
            passed += run.end - run.start
            for chunk in self._chunks(run.start + inside, min(run.end, run.start + inside + length - len(data))):
                if not data:
                    start = passed - (run.end - chunk.offset)
                data += chunk.data
            if len(data) >= length:
                break
        return OutputChunk(start, bytes(data))

    def stream_size(self, stream: Stream) -> int:
        number = STDOUT if stream == "stdout" else STDERR
        return sum(run.end - run.start for run in self.runs() if stream == "both" or run.stream in (number, EITHER))

    def runs(self) -> list[Run]:
        """Returns the ranges of the output in order, each with its stream."""
        size = self.size
        try:
            index = (self._folder / "output.streams").read_bytes()
        except FileNotFoundError:
            index = b""
        whole = index[: len(index) // _TURN.size * _TURN.size]
        turns = [(0, STDOUT)] + [(turn // 4, turn % 4) for (turn,) in _TURN.iter_unpack(whole)]
        ends = [min(start, size) for start, _ in turns[1:]] + [size]
        return [
            Run(min(start, size), end, stream) for (start, stream), end in zip(turns, ends, strict=True) if start < end
        ]

    def _chunks(self, start: int, end: int) -> Iterator[OutputChunk]:
        while start < end:
            chunk = self.read(start, end - start)
            if not chunk.data or chunk.offset >= end:
                return
            yield OutputChunk(chunk.offset, chunk.data[: end - chunk.offset])
            start = chunk.end

    def _is_cut(self) -> bool:
        return (self._folder / "output.cut").exists()

    def _files(self) -> list[tuple[int, int, Path]]:
        """Returns offset, length and path of each output file, in order."""
        files = []
        cut = self._is_cut()
        for path in self._folder.glob("output*"):
            start = _number(path.name)
            if start is None:
                continue
            try:
                length = path.stat().st_size
            except FileNotFoundError:
                continue  # The oldest piece, removed meanwhile.

            files.append((start, min(length, self._half) if cut and not start else length, path))
        return sorted(files)

    def _read_once(self, offset: int, length: int) -> OutputChunk:
        data = bytearray()
        files = self._files()
        first = max(bisect_right([start for start, _, _ in files], offset) - 1, 0)
        start = offset
        for begin, size, path in files[first:]:
            at = start + len(data)
            if begin + size <= at:
                continue
            if begin > at:
                if data:
                    break
                start = at = begin
            data += _bytes(path, at - begin, min(length - len(data), begin + size - at))
            if len(data) >= length:
                break
        return OutputChunk(start, bytes(data))


def _number(name: str) -> int | None:
    """Returns the offset at which a file begins, or None if the file holds no output."""
    if name == "output":
        return 0
    digits = name.removeprefix("output.")
    return int(digits) if digits.isdecimal() else None


def _bytes(path: Path, offset: int, length: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError:
        return b""
