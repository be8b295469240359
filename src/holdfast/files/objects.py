"""The seam to the file store: objects by name. An object is written once, whole, and never changed."""

from collections.abc import AsyncGenerator
from typing import BinaryIO, Final, Protocol

READ_BYTES: Final = 256 * 1024
"""About how much of an object is read at a time."""

HOME: Final = "holdfast-files"
"""The object whose content is the name of the file store: processes that share a database compare it."""


class Objects(Protocol):
    """Every method may raise `FilesUnavailable`."""

    @property
    def place(self) -> str:
        """Where the objects are, for the operator."""
        ...

    async def store(self, name: str, source: BinaryIO) -> None:
        """Store an object, which is on disk when this returns. The source is read from its beginning."""
        ...

    def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to `end`."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an object and what an interrupted `store` left of it. Safe to repeat."""
        ...

    async def home(self, name: str) -> str:
        """The name of this file store: the given one, unless it has one."""
        ...


def path_of(name: str) -> str:
    """The path of an object: no folder of a file system should have all of them."""
    return f"{name[:2]}/{name}"
