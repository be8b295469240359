"""Servers that write exactly the given bytes, for responses that no proper server sends."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self


def http(
    body: bytes,
    *,
    status: str = "200 OK",
    content_type: str = "text/event-stream",
    length: int | None = None,
    headers: str = "",
) -> bytes:
    """A response with a Content-Length; a length beyond the body makes its end a cut."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {size}\r\n{headers}\r\n"
    return head.encode() + body


class RawServer:
    """Answers every request with the same writes, with a pause before each. Then it closes the connection, unless it
    should `hold` until the client disconnects, or `keep` the connection for the next request."""

    def __init__(
        self, writes: Sequence[bytes], *, hold: bool = False, keep: bool = False, pause: float | None = None
    ) -> None:
        self.connections = 0
        self.asked = asyncio.Event()
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        self._writes = writes
        self._hold = hold
        self._keep = keep
        self._pause = pause

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    def writes_for(self, head: bytes) -> Sequence[bytes]:
        return self._writes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await _head(reader):
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.requests.append(head + await reader.readexactly(sum(int(line.split(b":")[1]) for line in lengths)))
            self.asked.set()
            for data in self.writes_for(head):
                if self._pause is not None:
                    await asyncio.sleep(self._pause)
                writer.write(data)
                await writer.drain()
            if self._hold:
                await reader.read()
                self.left.set()
            if not self._keep:
                break
        writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


class RoutedServer(RawServer):
    """Answers each path with one response, and every other path as a server does that knows no such path."""

    def __init__(self, routes: Mapping[str, bytes]) -> None:
        super().__init__((), keep=True)
        self._routes = routes

    def writes_for(self, head: bytes) -> Sequence[bytes]:
        path = head.split(b" ")[1].decode().partition("?")[0]
        return [self._routes.get(path, http(b"404 page not found", status="404 Not Found", content_type="text/plain"))]
