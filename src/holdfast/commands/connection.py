"""One client of the supervisor, over a socket. A client that does not read its responses is disconnected; the
supervisor never waits for it."""

import socket
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.commands.loop import READ, WRITE, SupervisorLoop
from holdfast.commands.protocol import (
    MessageTooLong,
    Request,
    Response,
    framed,
    requests,
    take_frames,
    unknown_requests,
)

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
CHUNK_BYTES: Final = 65_536


class SupervisorConnection:
    def __init__(
        self,
        loop: SupervisorLoop,
        peer: socket.socket,
        *,
        on_request: "Callable[[SupervisorConnection, Request], None]",
        on_close: "Callable[[SupervisorConnection], None]",
    ) -> None:
        self._loop = loop
        self._peer = peer
        self._on_request = on_request
        self._on_close = on_close
        self._received = bytearray()
        self._unsent = bytearray()
        self._is_open = True
        peer.setblocking(False)
        loop.watch(peer.fileno(), READ, self._ready)

    def send(self, response: Response) -> None:
        if not self._is_open:
            return
        self._unsent += framed(response)
        self._send()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._send()
        if events & READ and self._is_open:
            self._receive()

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._peer.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if len(self._unsent) > MAX_UNREAD_BYTES:
            self.close()
            return
        self._loop.watch(self._peer.fileno(), READ | WRITE if self._unsent else READ, self._ready)

    def _receive(self) -> None:
        try:
            data = self._peer.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        try:
            for frame in take_frames(self._received):
                self._take(frame)
        except (MessageTooLong, msgspec.DecodeError):
            self.close()

    def _take(self, frame: bytes) -> None:
        """Answers a request that only a later version understands with an error. Other requests on the connection are
        unaffected."""
        try:
            request = requests.decode(frame)
        except msgspec.ValidationError as error:
            number = unknown_requests.decode(frame).id
            self.send(Response(id=number, error=f"this supervisor does not know this request: {error}"))
        else:
            self._on_request(self, request)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.ignore(self._peer.fileno())
            self._peer.close()
            self._on_close(self)
