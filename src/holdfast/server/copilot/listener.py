"""Accepts clients on a TCP port, or on the pipes of the process that started this one. Each connection gets a Peer."""

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
"""Means both loopback addresses on the same port: clients may resolve the name to either."""

BIND_ATTEMPTS: Final = 20
"""Attempts to find a port that is free on both loopback addresses."""

PUMP_BYTES: Final = 65_536

_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class CopilotListener:
    """Listens for clients and keeps the connections of this process."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._servers: list[asyncio.Server] = []
        self._peers: dict[Peer, asyncio.Task[None]] = {}

    async def listen(self, host: str, port: int, *, token: str | None) -> int:
        """Start accepting connections and return the port; 0 chooses a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        sockets = _both_loopbacks(port) if host == LOOPBACK else [_bound(host, port)]
        for sock in sockets:
            server = await loop.create_server(partial(_Connection, self, token), sock=sock, backlog=BACKLOG)
            self._servers.append(server)
        return int(sockets[0].getsockname()[1])

    async def attach(self, reading: int, writing: int) -> Peer:
        """Serve one client over two file descriptors, which the listener now owns. No token is required."""
        loop = asyncio.get_running_loop()
        output = _Output()
        writing_end = os.fdopen(_pollable_output(writing), "wb", buffering=0)
        sender, _ = await loop.connect_write_pipe(lambda: output, writing_end)
        reading_end = os.fdopen(_pollable_input(reading), "rb", buffering=0)
        _, protocol = await loop.connect_read_pipe(lambda: _Input(self, sender), reading_end)
        output.peer = protocol.peer
        if sender.is_closing():
            protocol.peer.lost()
        return protocol.peer

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Close every connection after its queued answers are sent."""
        self.stop_accepting()
        for peer in self._peers:
            peer.close("the runtime stops")
        if self._peers:
            await asyncio.wait(self._peers.values())

    @property
    def is_full(self) -> bool:
        return len(self._peers) >= MAX_CONNECTIONS

    def admit(self, transport: "_Transport", token: str | None) -> Peer:
        """Create the peer of a new connection and keep it until it has finished."""
        peer = Peer(transport, lambda peer: ConnectionGate(peer, self._terms, token))
        self._peers[peer] = asyncio.create_task(peer.finished())
        self._peers[peer].add_done_callback(lambda _: self._peers.pop(peer, None))
        log.info("Connection %s begins", peer.id)
        return peer


class _Transport:
    """Implements RpcTransport over asyncio: one transport for both directions, or one for each."""

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

    Clients write a message's header and body in two pieces, and their kernel holds the second back until the first is
    acknowledged. Acknowledging every piece at once makes a request take 1 ms instead of 40.
    """

    def __init__(self, listener: CopilotListener, token: str | None) -> None:
        self._listener = listener
        self._token = token
        self._peer: Peer | None = None
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        both_ways = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio.Transport
        if self._listener.is_full:
            _turn_away(both_ways)
            return
        # A duplicate, because the socket object of the event loop must not be used directly after each read.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._acknowledge()
        self._peer = self._listener.admit(_Transport(both_ways, both_ways), self._token)

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
        return self._peer is not None  # keeps the transport open to send the remaining answers

    def connection_lost(self, error: Exception | None) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._peer is not None:
            self._peer.lost()

    def _acknowledge(self) -> None:
        """Ask for an immediate ACK. Linux resets the option whenever data is sent; other systems have no such
        option."""
        if _QUICK_ACK is not None and self._socket is not None:
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
            except OSError:
                pass  # the connection is breaking; `connection_lost` follows


def _turn_away(transport: asyncio.Transport) -> None:
    log.warning("A connection was refused: there are %d already", MAX_CONNECTIONS)
    error = {
        "code": TOO_MANY_REQUESTS,
        "message": f"There are {MAX_CONNECTIONS} connections already. Close one and connect again.",
    }
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
    """The pipe from the client. The connection ends when the client closes it."""

    peer: Peer

    def __init__(self, listener: CopilotListener, sender: asyncio.WriteTransport) -> None:
        self._listener = listener
        self._sender = sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = self._listener.admit(_Transport(cast(asyncio.ReadTransport, transport), self._sender), None)

    def data_received(self, data: bytes) -> None:
        self.peer.received(data)

    def eof_received(self) -> None:
        self.peer.ended()

    def connection_lost(self, error: Exception | None) -> None:
        self.peer.ended()


class _Output(asyncio.BaseProtocol):
    """The pipe to the client, which may close it before it stops writing to the other pipe."""

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
    """Move stdin and stdout to other descriptors and return those.

    Descriptor 0 then reads /dev/null and 1 writes to stderr, so that no stray print of this process or of a child lands
    between two frames, and no child consumes a frame.
    """
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return reading, writing


def _is_pollable(file: int) -> bool:
    mode = os.fstat(file).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _pollable_input(file: int) -> int:
    """A pipe or socket with the same bytes: an event loop can't poll a plain file or terminal, so a thread pumps
    those."""
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
    """Copy bytes until the source ends or the target is closed."""
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
