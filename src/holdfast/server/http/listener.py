"""The web server around the application: uvicorn's HTTP protocol with bounds on the request head, and a drain.

The drain accepts no new connections, finishes short responses, and resets streams: no client takes a reset for the end
of a stream.
"""

import asyncio
import socket
import time
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.server.http.errors import ApiError
from holdfast.server.http.gate import MAX_HEAD_BYTES
from holdfast.server.http.streams import ABORT

BACKLOG: Final = 1_024

KEEP_ALIVE_SECONDS: Final = 30

HEAD_SECONDS: Final = 30.0
"""How long the server waits for the head of a request: a silent client does not hold a connection for ever."""

DATE_SECONDS: Final = 1.0


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The head of a request is bounded while it arrives, and every error has the one shape."""

    _head_bytes = 0
    _is_in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            message = f"The head of a request has at most {MAX_HEAD_BYTES:,} bytes here."
            self._refuse(ApiError(431, "head_too_large", message))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()
        self._is_in_head = True
        self._head_bytes = 0
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_came()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "http_invalid", "That is not a request in HTTP/1.1."))

    def _refuse(self, error: ApiError) -> None:
        body = error.body()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


class HttpListener:
    """Serves one application on one address."""

    def __init__(self, app: ASGIApp) -> None:
        self._config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,  # Addresses may hold a token.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._date_task: asyncio.Task[None] | None = None

    async def listen(self, bound: socket.socket) -> None:
        """Accept the clients of this socket, also those that connected before."""
        self._config.load()
        self._date_task = asyncio.create_task(self._refresh_date())
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=bound, backlog=BACKLOG)

    def _connection(self) -> asyncio.Protocol:
        return BoundedProtocol(config=self._config, server_state=self._state, app_state={})

    async def _refresh_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
            await asyncio.sleep(DATE_SECONDS)

    def stop_accepting(self) -> None:
        """Accept no new connections; close idle ones now, and the others after their response."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()

    async def finish(self, *, seconds: float) -> None:
        """Wait for running responses, but no longer than this; then reset the remaining connections."""
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=seconds)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        remaining: tuple[asyncio.Task[Any], ...] = tuple(self._state.tasks)
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        if self._date_task is not None:
            self._date_task.cancel()


def bind(host: str, port: int) -> socket.socket:
    """Bind the address. From now on clients may connect, and wait until a listener accepts them. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    bound.setblocking(False)
    return bound
