"""A file on its way into the file store: an unnamed file on this machine's disk. It takes no memory, and is gone with
the process, however that ends."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.files.errors import FileRefused, FilesUnavailable
from holdfast.files.media_types import HEAD_BYTES, TAIL_BYTES
from holdfast.store.file_access import make_private_folder

PIECE_BYTES: Final = 1 << 20
"""How much is gathered before a thread writes it."""


class Spool:
    """A context manager; leaving it frees the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hash = hashlib.sha256()
        self.head = b""
        self.tail = b""
        self.size = 0

    def __enter__(self) -> Self:
        try:
            make_private_folder(self._folder)
            self.file = tempfile.TemporaryFile(dir=self._folder)
        except OSError as error:
            raise FilesUnavailable(f"No file can be made in {self._folder}: {error.strerror}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    async def fill(self, pieces: AsyncIterable[bytes], *, max_bytes: int) -> None:
        """Take all pieces. Raises `FileRefused` as soon as they are too many."""
        waiting = bytearray()
        async for piece in pieces:
            if self.size + len(waiting) + len(piece) > max_bytes:
                raise FileRefused("file_too_large", f"A file has at most {max_bytes:,} bytes; this one has more.")
            waiting += piece
            if len(waiting) >= PIECE_BYTES:
                await asyncio.to_thread(self._write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(self._write, bytes(waiting))

    def _write(self, data: bytes) -> None:
        try:
            self.file.write(data)
            self.file.flush()
        except OSError as error:
            raise FilesUnavailable(f"{self._folder} can't be written: {error.strerror}.") from error
        self._hash.update(data)
        self.head = (self.head + data[:HEAD_BYTES])[:HEAD_BYTES]
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self.size += len(data)
