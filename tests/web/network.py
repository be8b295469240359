"""The network between a browser and a server: it goes away and comes back, falls silent, breaks streams at any byte."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

_PIECE = 65_536


class Network:
    """Listens where the browser goes to, and passes everything on while it is up."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_up = True
        self._connections: set[_Connection] = set()
        self.stream_bytes: list[int] = []
        """How many bytes each of the next streams of a session gets through before it is broken off."""
        self.broken_streams = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.go_down()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def go_down(self) -> None:
        self._is_up = False
        for writer in list(self._writers):
            writer.transport.abort()

    def come_up(self) -> None:
        self._is_up = True

    def fall_silent(self) -> None:
        """The connections that there are stay, and nothing comes through them any more."""
        for connection in self._connections:
            connection.is_silent = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_up:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection()
        self._connections.add(connection)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(
                self._pass_on(reader, back, connection, is_request=True),
                self._pass_on(there, writer, connection, is_request=False),
            )
        finally:
            self._connections.discard(connection)
            self._writers -= {writer, back}
            for each in (writer, back):
                each.transport.abort()

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, connection: "_Connection", *, is_request: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(_PIECE):
                if connection.is_silent:
                    continue
                if is_request and _asks_for_a_stream(data) and self.stream_bytes:
                    connection.left = self.stream_bytes.pop(0)
                if not is_request and connection.left is not None:
                    data, connection.left = data[: connection.left], max(0, connection.left - len(data))
                to.write(data)
                await to.drain()
                if connection.left == 0:
                    self.broken_streams += 1
                    break
        to.close()


class _Connection:
    left: int | None = None
    is_silent = False


def _asks_for_a_stream(data: bytes) -> bool:
    first, _, head = data.partition(b"\r\n")
    return first.startswith(b"GET ") and b"/events" in first and b"text/event-stream" in head
