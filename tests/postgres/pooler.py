"""A minimal transaction pooler in front of PostgreSQL. It reads the protocol: a client has a connection to the server
from the first message of a transaction until the server reports that it is idle again, and gets another connection for
the next transaction, if there is another."""

import asyncio
import contextlib
import struct
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_CANCEL = 80877102
_ASKS = {b"Q": (b"Z",), b"S": (b"Z",), b"H": (b"T", b"n", b"E")}
"""Messages that the server answers, and the end of each answer: Query and Sync, and the Flush after a Describe."""


class Message:
    def __init__(self, kind: bytes, body: bytes) -> None:
        self.kind = kind
        self.body = body

    @property
    def whole(self) -> bytes:
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body


async def read_message(stream: asyncio.StreamReader) -> Message:
    kind = await stream.readexactly(1)
    (length,) = struct.unpack("!I", await stream.readexactly(4))
    return Message(kind, await stream.readexactly(length - 4))


async def read_startup(stream: asyncio.StreamReader) -> tuple[int, bytes]:
    (length,) = struct.unpack("!I", await stream.readexactly(4))
    body = await stream.readexactly(length - 4)
    return struct.unpack("!I", body[:4])[0], body


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


class Backend:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = b""

    @classmethod
    async def open(cls, socket: Path, startup: bytes) -> "Backend":
        backend = cls(*await asyncio.open_unix_connection(socket))
        backend.writer.write(struct.pack("!I", len(startup) + 4) + startup)
        while (message := await read_message(backend.reader)).kind != b"Z":
            backend.greeting += message.whole
        backend.greeting += message.whole
        return backend


class Pooler:
    """Listens on a port. `transactions` counts transactions, `switches` those that got another connection."""

    def __init__(self, socket: Path, *, size: int = 3) -> None:
        self._socket = socket
        self._size = size
        self._free: deque[Backend] = deque()
        self._opened: list[Backend] = []
        self._returned = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.transactions = 0
        self.switches = 0
        self.loses_commit_of: bytes | None = None
        """The next transaction with this text in a statement is committed, but the client is disconnected before the
        response."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for backend in self._opened:
            await close(backend.writer)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._talk(reader, writer)
        await close(writer)
        self._clients.discard(task)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        code, startup = await read_startup(reader)
        while code in (_SSL_REQUEST, _GSS_REQUEST):
            writer.write(b"N")
            code, startup = await read_startup(reader)
        if code == _CANCEL:
            return
        greeted = await self._take(startup, avoid=None)
        writer.write(greeted.greeting)
        await self._give_back(greeted)
        last = greeted
        while True:
            first = await read_message(reader)
            if first.kind == b"X":
                return
            backend = await self._take(startup, avoid=last)
            self.transactions += 1
            self.switches += backend is not last
            last = backend
            await self._transaction(first, reader, writer, backend)
            await self._give_back(backend)

    async def _transaction(
        self, message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: Backend
    ) -> None:
        is_watched = False
        while True:
            backend.writer.write(message.whole)
            while message.kind not in _ASKS:
                is_watched |= self.loses_commit_of is not None and self.loses_commit_of in message.body
                message = await read_message(reader)
                backend.writer.write(message.whole)
            answer = [await read_message(backend.reader)]
            while answer[-1].kind not in _ASKS[message.kind]:
                answer.append(await read_message(backend.reader))
            if is_watched and message.body == b"COMMIT\0":
                self.loses_commit_of = None
                await self._give_back(backend)
                raise ConnectionError
            writer.write(b"".join(part.whole for part in answer))
            if answer[-1].kind == b"Z" and answer[-1].body == b"I":
                return
            message = await read_message(reader)

    async def _take(self, startup: bytes, *, avoid: Backend | None) -> Backend:
        """A connection other than the one that this client had last, if there can be another."""
        async with self._returned:
            while True:
                if len(self._opened) < self._size:
                    self._opened.append(await Backend.open(self._socket, startup))
                    return self._opened[-1]
                for backend in self._free:
                    if backend is not avoid or self._size == 1:
                        self._free.remove(backend)
                        return backend
                if self._free and len(self._free) == len(self._opened):
                    return self._free.popleft()
                await self._returned.wait()

    async def _give_back(self, backend: Backend) -> None:
        async with self._returned:
            self._free.append(backend)
            self._returned.notify_all()
