"""The listener: the token, hostile clients beside honest ones, both loopback addresses, and pipes of every kind."""

import asyncio
import errno
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.copilot import gate as gate_module
from holdfast.server.copilot import listener as listener_module
from holdfast.server.copilot import peer as peer_module
from holdfast.server.copilot.frames import MAX_FRAME_BYTES
from holdfast.server.copilot.gate import Terms
from holdfast.server.copilot.listener import CopilotListener
from tests.wire.copilot.parrot import Parrot, Served, serving
from tests.wire.copilot.raw_client import SECONDS, RawClient, Refused, framed, request
from tests.wire.copilot.runtime_process import Listening, Place

TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run on both loops: embedding programs bring their own, and the runtime's processes use uvloop."""
    return "asyncio", {"use_uvloop": request.param}


def has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


# About the runtime


async def test_the_handshake_names_protocol_and_version() -> None:
    async with serving() as served, await RawClient.tcp(served.port) as raw:
        expected = {"ok": True, "protocolVersion": 3, "version": "1.2.3"}
        assert await raw.call("connect", {"supportedTaskKinds": ["agent"]}) == expected
        assert await raw.call("connect", {"token": "not-wanted-here"}) == expected
        assert await raw.call("status.get") == {"version": "1.2.3", "protocolVersion": 3}


async def test_ping_returns_its_message_and_the_time() -> None:
    async with serving() as served, await RawClient.tcp(served.port) as raw:
        pong = await raw.call("ping", {"message": "hi"})
        assert pong.pop("timestamp").endswith("Z")
        assert pong == {"message": "pong: hi", "protocolVersion": 3}
        assert (await raw.call("ping", {"message": None}))["message"] == "pong"
        assert (await raw.call("ping", {"message": ""}))["message"] == "pong: "
        with pytest.raises(Refused) as refused:
            await raw.call("ping", {"message": 5})
        assert refused.value.code == -32602


async def test_shutdown_is_answered_after_everything_is_closed() -> None:
    async with serving() as served, await RawClient.tcp(served.port) as raw:
        assert await raw.call("runtime.shutdown") is None
        assert served.shut_down.is_set()


# The token


async def test_no_handler_exists_before_the_token() -> None:
    async with serving(token=TOKEN) as served, await RawClient.tcp(served.port) as raw:
        for method in ("ping", "status.get", "runtime.shutdown", "echo", "nothing"):
            with pytest.raises(Refused) as refused:
                await raw.call(method)
            assert (refused.value.code, refused.value.message) == (-32001, "AUTHENTICATION_REQUIRED")
        assert not served.shut_down.is_set()
        assert served.parrot.open == set()
        assert (await raw.call("connect", {"token": TOKEN}))["ok"] is True
        assert await raw.call("echo", {"x": 1}) == {"x": 1}
        assert len(served.parrot.open) == 1


@pytest.mark.parametrize(
    "shown", [{}, {"token": ""}, {"token": None}, {"token": 5}, {"token": "ä"}, {"token": TOKEN + "x"}]
)
async def test_a_wrong_token_is_refused_and_opens_nothing(shown: dict[str, object]) -> None:
    async with serving(token=TOKEN) as served, await RawClient.tcp(served.port) as raw:
        with pytest.raises(Refused) as refused:
            await raw.call("connect", shown)
        assert (refused.value.code, refused.value.message) == (-32002, "AUTHENTICATION_FAILED")
        with pytest.raises(Refused, match="AUTHENTICATION_REQUIRED"):
            await raw.call("echo")
        assert (await raw.call("connect", {"token": TOKEN}))["ok"] is True


async def test_connection_that_guesses_tokens_is_closed() -> None:
    async with serving(token=TOKEN) as served, await RawClient.tcp(served.port) as raw:
        for _ in range(5):
            with pytest.raises(Refused, match="AUTHENTICATION_FAILED"):
                await raw.call("connect", {"token": "guess"})
        assert await raw.is_ended()


async def test_connection_without_a_token_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "UNPROVEN_SECONDS", 0.2)
    async with serving(token=TOKEN) as served:
        silent, honest = await RawClient.tcp(served.port), await RawClient.tcp(served.port)
        await honest.call("connect", {"token": TOKEN})
        assert await silent.is_ended()
        assert await honest.call("echo") == {}
        await silent.close()
        await honest.close()


async def test_frame_limit_is_small_before_the_token() -> None:
    async with serving(token=TOKEN) as served:
        async with await RawClient.tcp(served.port) as raw:
            raw.send_bytes(b"Content-Length: 65537\r\n\r\n")
            assert "at most 65536 bytes" in (await raw.next())["error"]["message"]
            assert await raw.is_ended()
        async with await RawClient.tcp(served.port) as raw:
            await raw.call("connect", {"token": TOKEN})
            assert len((await raw.call("echo", {"text": "x" * 100_000}))["text"]) == 100_000


# Hostile clients, beside an honest one, at a real process


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    async with Place(tmp_path_factory.mktemp("listener")).listening() as listening:
        yield listening


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"Content-Length: %d\r\n\r\n" % (MAX_FRAME_BYTES + 1), f"at most {MAX_FRAME_BYTES} bytes"),
        (b"Content-Length: -5\r\n\r\n", "not a whole number"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "'Name: value'"),
        (b"A: b\r\n" * 1000, "more than 16 header lines"),
        (b"A" * 5000, "longer than 1024 bytes"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "'Name: value'"),
        (framed(b"{}")[:-2] + b"{}\r\n\r\n", "must begin with a line"),
    ],
    ids=["too large", "negative", "TLS", "many headers", "long header", "HTTP", "no length"],
)
async def test_bad_stream_gets_an_error_and_is_closed(running: Listening, stream: bytes, why: str) -> None:
    async with await running.client() as honest, await running.client() as hostile:
        assert await honest.call("echo", {"n": 1}) == {"n": 1}
        hostile.send_bytes(stream)
        told = await hostile.next()
        if why == "must begin with a line":  # after a message that was whole, and wrong only in itself
            assert told["error"]["code"] == -32600
            told = await hostile.next()
        assert (told["id"], told["error"]["code"]) == (None, -32700)
        assert why in told["error"]["message"]
        assert await hostile.is_ended()
        assert await honest.call("echo", {"n": 2}) == {"n": 2}


async def test_the_body_of_a_frame_that_is_too_large_is_not_read(running: Listening) -> None:
    async with await running.client() as honest, await running.client() as hostile:
        hostile.send_bytes(b"Content-Length: %d\r\n\r\n" % (MAX_FRAME_BYTES + 1) + b"x" * 64_000_000)
        try:
            async with asyncio.timeout(SECONDS):
                await hostile.writer.drain()
                await hostile.until_end()
        except ConnectionError:
            pass  # we were dropped in the middle of it
        assert await honest.call("echo") == {}


@pytest.mark.parametrize(
    "piece", [b"", b"Con", b"Content-Length: 5", b"Content-Length: 500\r\n\r\n", b"Content-Length: 500\r\n\r\n{"]
)
async def test_client_that_leaves_in_mid_message_leaves_nothing_behind(running: Listening, piece: bytes) -> None:
    async with await running.client() as honest, await running.client() as leaving:
        before = await honest.call("connections")
        assert await leaving.call("echo") == {}
        leaving.send_bytes(piece)
        await leaving.close()
        async with asyncio.timeout(SECONDS):
            while (now := await honest.call("connections"))["closed"] == before["closed"]:
                pass
        assert now["open"] <= before["open"]


async def test_a_flood_from_one_client_does_not_starve_another(running: Listening) -> None:
    async with await running.client() as honest, await running.client() as flooding:
        flooding.send(*(request(n, "ping") for n in range(10_000)))
        for n in range(20):
            assert await honest.call("echo", {"n": n}) == {"n": n}
        for n in range(10_000):
            assert (await flooding.next())["id"] == n


async def test_a_client_that_never_reads_is_dropped_by_a_real_process_too(running: Listening) -> None:
    async with await running.client() as honest:
        before = (await honest.call("connections"))["closed"]
        silent = socket.create_connection(("127.0.0.1", running.port))
        with closing(silent):
            silent.sendall(framed(request(1, "tell", {"times": 150, "size": 1_000_000})))
            async with asyncio.timeout(SECONDS):
                while (await honest.call("connections"))["closed"] == before:
                    pass


# Connections


async def test_number_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 2)
    async with serving() as served:
        first, second = await RawClient.tcp(served.port), await RawClient.tcp(served.port)
        await first.call("echo")
        await second.call("echo")
        async with await RawClient.tcp(served.port) as third:
            assert (await third.next())["error"][
                "message"
            ] == "There are 2 connections already. Close one and connect again."
            assert await third.is_ended()
        await first.close()
        await served.parrot.until_closed(1)
        await until_room(served)
        async with await RawClient.tcp(served.port) as fourth:
            assert await fourth.call("echo") == {}
        await second.close()


async def until_room(served: Served) -> None:
    async with asyncio.timeout(SECONDS):
        while served.listener.is_full:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_stop_closes_every_connection_and_its_handler() -> None:
    async with serving() as served:
        clients = [await RawClient.tcp(served.port) for _ in range(5)]
        for client in clients:
            await client.call("echo")
        await served.listener.close()
        for client in clients:
            assert await client.is_ended()
            await client.close()
        assert (served.parrot.open, served.parrot.closed) == (set(), 5)
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await RawClient.tcp(served.port)


async def test_client_that_reads_nothing_does_not_delay_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "GIVING_UP_SECONDS", 0.1)
    async with serving() as served, await RawClient.tcp(served.port) as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        raw.send(request(1, "tell", {"times": 30, "size": 1_000_000}))
        async with asyncio.timeout(SECONDS):
            while not served.parrot.open or served.handler().seen != ["tell"]:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await served.listener.close()


@needs_ipv6
async def test_localhost_means_both_loopback_addresses_on_one_port() -> None:
    async with serving(host="localhost") as served:
        for host in ("127.0.0.1", "::1"):
            async with await RawClient.tcp(served.port, host) as raw:
                assert await raw.call("echo") == {}


@needs_ipv6
async def test_port_in_use_on_either_loopback_address_is_not_taken() -> None:
    """A client that resolves the name to that address would reach the other program."""
    async with serving(host="localhost") as served:
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
            with closing(socket.socket(family)) as taken:
                taken.bind((host, 0))
                taken.listen()
                with pytest.raises(OSError) as refused:  # noqa: PT011
                    await served.listener.listen("localhost", taken.getsockname()[1], token=None)
                assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux delays acknowledgements and lets us ask for them")
async def test_every_piece_of_a_message_is_acknowledged_at_once() -> None:
    """The clients' kernels hold the body back until the header is acknowledged."""
    async with serving() as served:
        client = socket.create_connection(("127.0.0.1", served.port))
        with closing(client), client.makefile("rb") as reading, closing(await server_side_of(client)) as accepted:
            at_once = 0
            for n in range(50):
                header, empty, body = framed(request(n, "ping")).partition(b"\r\n\r\n")
                client.sendall(header + empty)
                await until_read(accepted)
                at_once += unacknowledged(client) == 0
                client.sendall(body)
                length = (await asyncio.to_thread(reading.readline)).removeprefix(b"Content-Length: ")
                assert b'"pong"' in await asyncio.to_thread(reading.read, int(length) + 2)
            assert at_once >= 45  # the kernel may be late, and is by itself this quick for the first few only
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def until_read(accepted: socket.socket) -> None:
    """Wait until the kernel's receive buffer is empty."""
    waiting = bytearray(4)
    async with asyncio.timeout(SECONDS):
        while fcntl.ioctl(accepted, termios.FIONREAD, waiting) or any(waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)


def unacknowledged(sending: socket.socket) -> int:
    """Packets sent by this side that the other has not acknowledged yet."""
    unacked: int = struct.unpack_from("=I", sending.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]
    return unacked


async def server_side_of(client: socket.socket) -> socket.socket:
    """The listener's accepted socket for this client."""
    async with asyncio.timeout(SECONDS):
        while True:
            for name in os.listdir("/proc/self/fd"):
                found = _socket_at(int(name))
                if found is not None and _peer_of(found) == client.getsockname():
                    return found
                if found is not None:
                    found.close()
            await asyncio.sleep(0)


def _socket_at(number: int) -> socket.socket | None:
    try:
        copy = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None


def _peer_of(found: socket.socket) -> object:
    try:
        return found.getpeername()
    except OSError:
        return None


# Pipes


def terms(parrot: Parrot) -> Terms:
    async def nothing() -> None:
        pass

    return Terms(connected=parrot.connected, version="1.2.3", shut_down=nothing)


@asynccontextmanager
async def piped(reading: int, writing: int) -> AsyncIterator[RawClient]:
    """The client's side of two pipes. uvloop leaves the reading one open at its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    end, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", buffering=0))
    transport, _ = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb", buffering=0)
    )
    try:
        yield RawClient(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
    finally:
        transport.close()
        end.close()


async def test_client_over_two_pipes_is_served_without_a_token() -> None:
    parrot = Parrot()
    (their_reading, our_writing), (our_reading, their_writing) = os.pipe(), os.pipe()
    peer = await CopilotListener(terms(parrot)).attach(our_reading, our_writing)
    async with piped(their_reading, their_writing) as client:
        assert (await client.call("connect"))["ok"] is True
        assert await client.call("echo", {"x": 1}) == {"x": 1}
        client.writer.close()
        assert await client.until_end() == b""
        await peer.finished()
    assert parrot.closed == 1


async def test_client_over_two_sockets_is_served() -> None:
    """Some languages start their child processes with sockets."""
    parrot = Parrot()
    (ours, theirs), (our_output, their_input) = socket.socketpair(), socket.socketpair()
    peer = await CopilotListener(terms(parrot)).attach(ours.detach(), our_output.detach())
    async with piped(their_input.detach(), theirs.detach()) as client:
        assert await client.call("echo", {"x": 1}) == {"x": 1}
        client.writer.close()
        assert await client.until_end() == b""
        await peer.finished()


async def test_client_that_closes_its_reading_end_has_left() -> None:
    parrot = Parrot()
    (their_reading, our_writing), (our_reading, their_writing) = os.pipe(), os.pipe()
    peer = await CopilotListener(terms(parrot)).attach(our_reading, our_writing)
    os.close(their_reading)
    async with asyncio.timeout(SECONDS):
        while peer.is_open:
            peer.notify("told", {})
            await asyncio.sleep(0)
        await peer.finished()
    os.close(their_writing)
    assert parrot.closed == 1


async def test_plain_files_work_in_place_of_pipes(tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(framed(request(1, "echo", {"x": 1})) + framed(request(2, "ping")))
    reading = os.open(asked, os.O_RDONLY)
    writing = os.open(answered, os.O_WRONLY | os.O_CREAT)
    peer = await CopilotListener(terms(Parrot())).attach(reading, writing)
    async with asyncio.timeout(SECONDS):
        await peer.finished()
        while b"pong" not in answered.read_bytes():  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert answered.read_bytes().startswith(b'Content-Length: 41\r\n\r\n{"jsonrpc":"2.0","id":1,"result":{"x":1}}')
