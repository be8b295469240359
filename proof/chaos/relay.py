"""A connection from a node to the database that can be cut: everything goes through a port of this process.

While the connection is cut nothing arrives, and neither side can notice: connections stay open, and new ones are
accepted and wait. Data in transit arrives late, when the connection is restored.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

READ_BYTES: Final = 65_536


class Relay:
    """An async context manager. `port` is where a node connects to."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        self.reset()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        self._is_whole.clear()

    def heal(self) -> None:
        self._is_whole.set()

    def lead_to(self, target: Path) -> None:
        """New connections go to another server; those of before are reset."""
        self._target = target
        self.reset()

    def reset(self) -> None:
        for writer in list(self._connections):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._known(writer):
            await self._is_whole.wait()
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_unix_connection(str(self._target))
                with self._known(back):
                    await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    @contextlib.contextmanager
    def _known(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._connections.add(writer)
        try:
            yield
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self._is_whole.wait()
                writer.write(data)
                await writer.drain()
        await self._is_whole.wait()
        writer.close()
