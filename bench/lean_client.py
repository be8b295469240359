"""A lean client of `holdfast-copilot`: it says what the public client says, and takes next to nothing of what the
figures are about. Messages are written whole, and only as much of an answer is read as is needed."""

import asyncio
import itertools
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from bench.models import ONE_TOKEN

_AS_CREATED = {
    "toolFilterPrecedence": "excluded",
    "requestPermission": True,
    "requestElicitation": False,
    "requestExitPlanMode": False,
    "requestAutoModeSwitch": False,
    "includeSubAgentStreamingEvents": True,
    "envValueMode": "direct",
}
"""What the public client sends for a session with nothing but somebody who is asked for permission."""

_SEPARATOR = b"\r\n\r\n"
_HEADER = b"Content-Length: "


class _Event(msgspec.Struct, gc=False):
    type: str


class _Params(msgspec.Struct, gc=False, rename="camel"):
    session_id: str = ""
    event: _Event | None = None


class _Incoming(msgspec.Struct, gc=False):
    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None
    params: _Params | None = None


_decode = msgspec.json.Decoder(_Incoming).decode


class LeanClient(asyncio.Protocol):
    """One connection, with the sessions that were created over it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._answered: set[str] = set()

    async def call(self, method: str, **params: Any) -> Any:
        assert self._transport is not None
        request_id = next(self._ids)
        answer = self._asked[request_id] = self._loop.create_future()
        self._transport.write(framed(request_id, method, params))
        return msgspec.json.decode(await answer)

    async def create(self) -> str:
        """A session; its id."""
        session_id = str(uuid.uuid4())
        await self.call("session.create", sessionId=session_id, **_AS_CREATED)
        return session_id

    async def turn(self, session_id: str) -> None:
        """Say something, and wait until it was answered and the session is idle."""
        idle = self._turns[session_id] = self._loop.create_future()
        await self.call("session.send", sessionId=session_id, prompt=ONE_TOKEN)
        await idle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        start = 0
        while (header := data.find(_SEPARATOR, start)) >= 0:
            body = header + len(_SEPARATOR)
            end = body + int(data[start + len(_HEADER) : header])
            if end > len(data):
                break
            self._take(_decode(data[body:end]))
            start = end
        self._unread = data[start:]

    def connection_lost(self, error: Exception | None) -> None:
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._turns.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(RuntimeError("holdfast-copilot hung up"))
                future.exception()  # of two that one turn waits for, only the first is looked at

    def _take(self, message: _Incoming) -> None:
        if message.params is not None and message.params.event is not None:
            self._hear(message.params.session_id, message.params.event.type)
        elif message.id is not None:
            answer = self._asked.pop(message.id)
            if message.error is not None:
                answer.set_exception(RuntimeError(f"holdfast-copilot refused: {message.error}"))
            else:
                answer.set_result(message.result)

    def _hear(self, session_id: str, event_type: str) -> None:
        match event_type:
            case "assistant.message":
                self._answered.add(session_id)
            case "session.idle":
                idle = self._turns.pop(session_id)
                if session_id in self._answered:
                    idle.set_result(None)
                else:
                    idle.set_exception(RuntimeError("a measured turn had no answer"))
                self._answered.discard(session_id)
            case _:
                pass


@asynccontextmanager
async def lean_client(port: int) -> AsyncIterator[LeanClient]:
    transport, client = await asyncio.get_running_loop().create_connection(LeanClient, "127.0.0.1", port)
    try:
        await client.call("connect")
        yield client
    finally:
        transport.close()


def framed(request_id: int, method: str, params: dict[str, Any]) -> bytes:
    header, body = _header_and_body(request_id, method, params)
    return header + body


def _header_and_body(request_id: int, method: str, params: dict[str, Any]) -> tuple[bytes, bytes]:
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
    return _HEADER + b"%d" % len(body) + _SEPARATOR, body


def ping_delays(port: int, count: int) -> list[float]:
    """Seconds for each ping of a client that writes header and body one after the other, and lets the system wait for
    the acknowledgement of the first before it sends the second: as the public one does."""
    delays = []
    with socket.create_connection(("127.0.0.1", port)) as sock, sock.makefile("rb") as answers:
        for request_id in range(1, count + 1):
            started = time.perf_counter()
            for part in _header_and_body(request_id, "ping", {"message": "hello"}):
                sock.sendall(part)
            length = int(answers.readline().removeprefix(_HEADER))
            answers.readline()
            answer = _decode(answers.read(length))
            delays.append(time.perf_counter() - started)
            if answer.id != request_id or answer.error is not None:
                raise RuntimeError(f"a ping was answered with {answer}")
    return delays
