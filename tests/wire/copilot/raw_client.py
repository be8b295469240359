"""A client that writes the protocol's bytes itself, and may write bad ones."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any, Self

SECONDS = 30.0
"""Timeout for everything that a test waits for."""


def framed(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def request(request_id: Any, method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {} if params is None else params}


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data = error.get("data")


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.set_aside: list[dict[str, Any]] = []
        """Messages that arrived while the client waited for an answer."""
        self._ids: Iterator[int] = itertools.count(1000)

    @classmethod
    async def tcp(cls, port: int, host: str = "127.0.0.1") -> Self:
        return cls(*await asyncio.open_connection(host, port))

    def send(self, *messages: Any) -> None:
        self.writer.write(b"".join(map(framed, messages)))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    def notify(self, method: str, params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def next(self) -> dict[str, Any]:
        """The next message. It must have exactly one header line: real clients accept no others."""
        async with asyncio.timeout(SECONDS):
            header = await self.reader.readuntil(b"\r\n\r\n")
            name, _, length = header.removesuffix(b"\r\n\r\n").partition(b": ")
            assert name == b"Content-Length", header
            message = json.loads(await self.reader.readexactly(int(length)))
        assert isinstance(message, dict)
        assert message["jsonrpc"] == "2.0"
        return message

    async def answer_to(self, request_id: Any) -> Any:
        """The result; other messages that arrive before it are kept in a list."""
        while (message := await self.next()).get("id", "none") != request_id or "method" in message:
            self.set_aside.append(message)
        if "error" in message:
            raise Refused(message["error"])
        return message["result"]

    async def call(self, method: str, params: Any = None) -> Any:
        request_id = next(self._ids)
        self.send(request(request_id, method, params))
        return await self.answer_to(request_id)

    async def until_end(self) -> bytes:
        """All messages until the server closes the connection."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()

    async def is_ended(self) -> bool:
        """Whether the server has closed the connection, with or without a reset."""
        try:
            return await self.until_end() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # the server closed it first

    def drop(self) -> None:
        """Drop the connection abruptly, as when a process is killed."""
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
