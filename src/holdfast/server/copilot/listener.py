"""Where clients connect: the pipes of the process that started us, or a TCP port. Every connection becomes a Peer."""

import asyncio
import errno
import logging
import os
import socket
import stat
import threading
from functools import partial
from typing import Final, cast

from holdfast.server.copilot.frames import frame
from holdfast.server.copilot.gate import ConnectionGate, Terms
from holdfast.server.copilot.peer import TOO_MANY_REQUESTS, Peer

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 1_000
BACKLOG: Final = 128

LOOPBACK: Final = "localhost"
"""Both loopback addresses under the same port number: clients resolve the name to either."""

BIND_ATTEMPTS: Final = 20
"""A number that is free on one loopback address may be taken on the other; then another number is tried."""

PUMP_BYTES: Final = 65_536

_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class CopilotListener:
    """All connections of this process."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._servers: list[asyncio.Server] = []
        self._peers: dict[Peer, asyncio.Task[None]] = {}

    async def listen(self, host: str, port: int, *, token: str | None) -> int:
        """Accept connections; the port, which was chosen now if 0 was given. Raises OSError."""
        loop = asyncio.get_running_loop()
        sockets = _both_loopbacks(port) if host == LOOPBACK else [_bound(host, port)]
        for sock in sockets:
            server = await loop.create_server(partial(_Connection, self, token), sock=sock, backlog=BACKLOG)
            self._servers.append(server)
        return int(sockets[0].getsockname()[1])

    async def attach(self, reading: int, writing: int) -> Peer:
        """Serve the one client at the other ends of these files, which are ours from now on. It shows no token."""
        loop = asyncio.get_running_loop()
        output = _Output()
        writing_end = os.fdopen(_pollable_output(writing), "wb", buffering=0)
        sender, _ = await loop.connect_write_pipe(lambda: output, writing_end)
        reading_end = os.fdopen(_pollable_input(reading), "rb", buffering=0)
        _, given = await loop.connect_read_pipe(lambda: _Input(self, sender), reading_end)
        output.peer = given.peer
        if sender.is_closing():
            given.peer.lost()
        return given.peer

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """End every connection; what was answered before is sent."""
        self.stop_accepting()
        for peer in self._peers:
            peer.close("the runtime stops")
        if self._peers:
            await asyncio.wait(self._peers.values())

    @property
    def is_full(self) -> bool:
        return len(self._peers) >= MAX_CONNECTIONS

    def admit(self, wire: "_Wire", token: str | None) -> Peer:
        peer = Peer(wire, lambda peer: ConnectionGate(peer, self._terms, token))
        self._peers[peer] = asyncio.create_task(peer.finished())
        self._peers[peer].add_done_callback(lambda _: self._peers.pop(peer, None))
        log.info("Connection %s begins", peer.id)
        return peer


class _Wire:
    """One transport for both directions, or one for each."""

    def __init__(self, reading: asyncio.ReadTransport, writing: asyncio.WriteTransport) -> None:
        self._reading = reading
        self._writing = writing

    def write(self, data: bytes) -> None:
        self._writing.write(data)

    def unsent_bytes(self) -> int:
        return self._writing.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._reading.is_closing():
            self._reading.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading.is_closing():
            self._reading.resume_reading()

    def close(self) -> None:
        self._writing.close()
        self._reading.close()

    def abort(self) -> None:
        self._writing.abort()
        self._reading.close()


# TCP


class _Connection(asyncio.Protocol):
    """One TCP connection.

    Clients write a message's header and body in two pieces, the second of which their side holds back until the first
    is acknowledged. So every piece is acknowledged at once: it is the difference between 1 and 40 ms for each request.
    """

    def __init__(self, listener: CopilotListener, token: str | None) -> None:
        self._listener = listener
        self._token = token
        self._peer: Peer | None = None
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        both_ways = cast(asyncio.Transport, transport)  # uvloop's own are no subclasses of it
        if self._listener.is_full:
            _turn_away(both_ways)
            return
        # A duplicate, because what the event loop hands out is not meant for one call after each read.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._acknowledge()
        self._peer = self._listener.admit(_Wire(both_ways, both_ways), self._token)

    def data_received(self, data: bytes) -> None:
        self._acknowledge()
        if self._peer is not None:
            self._peer.received(data)

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.filled()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.emptied()

    def eof_received(self) -> bool:
        if self._peer is not None:
            self._peer.ended()
        return self._peer is not None  # the answers to what was read may still be sent

    def connection_lost(self, error: Exception | None) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._peer is not None:
            self._peer.lost()

    def _acknowledge(self) -> None:
        """Linux forgets this wish whenever data is sent; elsewhere there is none to make."""
        if _QUICK_ACK is not None and self._socket is not None:
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
            except OSError:
                pass  # the connection is breaking, which we shall be told


def _turn_away(transport: asyncio.Transport) -> None:
    log.warning("A connection was refused: there are %d already", MAX_CONNECTIONS)
    error = {"code": TOO_MANY_REQUESTS, "message": f"There are {MAX_CONNECTIONS} connections already."}
    transport.write(frame({"jsonrpc": "2.0", "id": None, "error": error}))
    transport.close()


def _both_loopbacks(port: int) -> list[socket.socket]:
    for attempt in range(1, BIND_ATTEMPTS + 1):
        first = _bound("127.0.0.1", port)
        try:
            return [first, _bound("::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [first]  # this machine has no IPv6
            first.close()
            if port or attempt == BIND_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returned or raised")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


# stdio


class _Input(asyncio.Protocol):
    """What the client writes. Its end is the client's."""

    peer: Peer

    def __init__(self, listener: CopilotListener, sender: asyncio.WriteTransport) -> None:
        self._listener = listener
        self._sender = sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = self._listener.admit(_Wire(cast(asyncio.ReadTransport, transport), self._sender), None)

    def data_received(self, data: bytes) -> None:
        self.peer.received(data)

    def eof_received(self) -> None:
        self.peer.ended()

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.ended()


class _Output(asyncio.BaseProtocol):
    """What the client reads. It may stop doing so before it stops writing."""

    peer: Peer | None = None

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.filled()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.emptied()

    def connection_lost(self, error: Exception | None) -> None:
        if self.peer is not None:
            self.peer.lost()


def take_standard_streams() -> tuple[int, int]:
    """The real input and output, under other numbers.

    What is left under 0 and 1 is nothing to read, and stderr: no stray print, ours or a child's, ever lands between
    two frames, and no child reads a frame away.
    """
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return reading, writing


def _is_pollable(file: int) -> bool:
    mode = os.fstat(file).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _pollable_input(file: int) -> int:
    """An event loop can't wait for a plain file or a terminal: a thread reads it into a pipe."""
    if _is_pollable(file):
        return file
    reading, writing = os.pipe()
    threading.Thread(target=_pump, args=(file, writing), name="copilot-input", daemon=True).start()
    return reading


def _pollable_output(file: int) -> int:
    if _is_pollable(file):
        return file
    reading, writing = os.pipe()
    threading.Thread(target=_pump, args=(reading, file), name="copilot-output").start()
    return writing


def _pump(source: int, target: int) -> None:
    """Until the source ends or nobody reads the target."""
    try:
        while data := os.read(source, PUMP_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    except OSError as error:
        log.info("A standard stream can't be used any more: %s", error.strerror)
    finally:
        os.close(source)
        os.close(target)
