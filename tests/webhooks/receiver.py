"""A real receiver of webhooks: it records what it is sent, and answers as a test says."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.events.webhook import Report
from holdfast.protocol.webhook_signature import verify_webhook

PATIENCE_SECONDS = 30.0
"""How long a test waits for something that must come. No test that passes waits so long."""


class Received(NamedTuple):
    """One request."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str, *, now: float | None = None) -> Report:
        return verify_webhook(secret, self.headers, self.body, now=now)


class Receiver:
    """Answers each request with the status that `answers` gives for it, once it is not held."""

    def __init__(
        self, answers: Callable[[Received], int] = lambda request: 204, *, more: str = "", port: int = 0
    ) -> None:
        self.answers = answers
        self.more = more
        """More header lines of the answer."""
        self.port = port
        self.received: list[Received] = []
        self.connections = 0
        self.is_open = asyncio.Event()
        """Requests are answered while it is set."""
        self.is_open.set()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._come, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"

    async def until(self, count: int) -> list[Received]:
        """All requests, once there are so many."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.create_task(self._serve(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            request = Received(head[0].split(" ")[1], headers, body)
            async with self._arrived:
                self.received.append(request)
                self._arrived.notify_all()
            await self.is_open.wait()
            writer.write(f"HTTP/1.1 {self.answers(request)} So\r\n{self.more}content-length: 0\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
