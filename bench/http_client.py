"""A lean HTTP client: it takes next to nothing of what the figures are about, as it shares its core with the model.

One connection at a time carries one request. An answer is kept as the bytes that came; only its end is looked for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
"""Nothing else in a stream of events looks like it: they have no carriage returns of their own."""


class Answer(msgspec.Struct, gc=False):
    """`body` is as it came, with the sizes of its chunks in between if it came in chunks."""

    status: int
    body: bytes

    def expect(self, *statuses: int) -> "Answer":
        if self.status not in statuses:
            raise RuntimeError(f"a measured request was answered with {self.status}: {self.body[:500]!r}")
        return self

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection(asyncio.Protocol):
    """One connection that is kept. `heard` is given whatever comes, as it comes."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._heard: Callable[[bytes], None] | None = None
        self._came: list[bytes] = []
        self._head = b""
        self._status = 0
        self._left: int | None = None
        """How many bytes are still to come; None: it comes in chunks."""
        self._end = b""

    async def ask(self, request: bytes, heard: Callable[[bytes], None] | None = None) -> Answer:
        """Send a request that `request_bytes` made, and wait for the whole of its answer."""
        self.send(request, heard)
        assert self._answer is not None
        return await self._answer

    def send(self, request: bytes, heard: Callable[[bytes], None] | None = None) -> None:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._heard, self._came, self._head, self._end = heard, [], b"", b""
        self._transport.write(request)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask(request_bytes("GET", self._host, path, headers=headers))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError("the measured server hung up"))
            self._answer.exception()  # nobody waits for the end of a stream that is only listened to

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._head += data
            head, found, data = self._head.partition(_HEAD_END)
            if not found:
                return
            self._begin(head.lower())
        if data:
            self._came.append(data)
            if self._heard is not None:
                self._heard(data)
        self._look_for_end(data)

    def _begin(self, head: bytes) -> None:
        self._status = int(head[9:12])
        # The line break before the first chunk's size is the head's own.
        self._left, self._end = None, _LAST_CHUNK[:2]
        if b"transfer-encoding: chunked" not in head:
            _, found, length = head.partition(b"content-length: ")
            self._left = int(length.partition(b"\r")[0]) if found else 0

    def _look_for_end(self, data: bytes) -> None:
        if self._left is not None:
            self._left -= len(data)
            is_over = self._left <= 0
        else:
            self._end = (self._end + data[-len(_LAST_CHUNK) :])[-len(_LAST_CHUNK) :]
            is_over = self._end == _LAST_CHUNK
        if is_over and self._answer is not None:
            self._answer.set_result(Answer(self._status, b"".join(self._came)))
            self._status, self._heard = 0, None


def request_bytes(
    method: str, host: str, path: str, body: bytes = b"", *, headers: dict[str, str] | None = None
) -> bytes:
    told = {"host": host, "content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Connection]]:
    """So many, to one server."""
    host = url.removeprefix("http://").partition("/")[0]
    name, _, port = host.partition(":")
    loop = asyncio.get_running_loop()
    opened: list[tuple[asyncio.Transport, Connection]] = []
    try:
        for _ in range(count):
            opened.append(await loop.create_connection(lambda: Connection(host), name, int(port)))
        yield [connection for _, connection in opened]
    finally:
        for transport, _ in opened:
            transport.close()
