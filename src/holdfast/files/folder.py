"""The file store in a folder of this machine, or one that machines share."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from holdfast.files.errors import FilesUnavailable
from holdfast.files.objects import HOME, READ_BYTES, path_of
from holdfast.store.file_access import make_private_folder

PARTIAL: Final = ".partial"

T = TypeVar("T")


class ObjectFolder:
    """An object is written beside its place, synced, and then renamed: under its name it is whole, or not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return f"the folder {self._path}"

    async def store(self, name: str, source: BinaryIO) -> None:
        await self._run(self._store, self._path / path_of(name), source)

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        file: BinaryIO = await self._run(open, self._path / path_of(name), "rb")
        try:
            await self._run(file.seek, start)
            while start < end and (data := await self._run(file.read, min(READ_BYTES, end - start))):
                start += len(data)
                yield data
        finally:
            file.close()

    async def remove(self, name: str) -> None:
        await self._run(self._remove, self._path / path_of(name))

    async def home(self, name: str) -> str:
        return await self._run(self._home, name)

    @staticmethod
    def _store(path: Path, source: BinaryIO) -> None:
        make_private_folder(path.parent)
        partial = path.with_name(path.name + PARTIAL)
        with open(partial, "wb", opener=_private) as file:
            source.seek(0)
            shutil.copyfileobj(source, file, READ_BYTES)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        for folder in (path.parent, path.parent.parent):
            _sync(folder)

    @staticmethod
    def _remove(path: Path) -> None:
        for each in (path, path.with_name(path.name + PARTIAL)):
            each.unlink(missing_ok=True)

    def _home(self, name: str) -> str:
        """Linked to its place only when it is written and synced: of several processes, one sets the name."""
        path = self._path / HOME
        if not path.exists():
            make_private_folder(self._path)
            partial = path.with_name(f"{HOME}.{name}{PARTIAL}")
            with open(partial, "w", opener=_private) as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
            partial.unlink()
            for folder in (self._path, self._path.parent):
                _sync(folder)
        return path.read_text("ascii")

    async def _run(self, function: Callable[..., T], *given: Any) -> T:
        try:
            return await asyncio.to_thread(function, *given)
        except (OSError, UnicodeError) as error:
            raise FilesUnavailable(f"{self.place[0].upper()}{self.place[1:]} can't be used: {error}.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
