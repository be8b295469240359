"""A network of its own for a process, with ways to this machine that can be cut: packets are then lost, and nobody is
told. It takes the right to make network namespaces."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

Connect = Callable[[], Any]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Way:
    """One link between the namespace and this machine."""

    def __init__(self, namespace: str, number: int) -> None:
        self.link = f"hf{os.getpid()}_{number}"[:15]
        subnet = f"10.{213 + number}.{os.getpid() // 250 % 250}"
        self.here = f"{subnet}.1"
        peer = f"p{os.getpid()}_{number}"[:15]
        _ip("link", "add", self.link, "type", "veth", "peer", "name", peer, "netns", namespace)
        _ip("addr", "add", f"{self.here}/30", "dev", self.link)
        _ip("link", "set", self.link, "up")
        _ip("-n", namespace, "addr", "add", f"{subnet}.2/30", "dev", peer)
        _ip("-n", namespace, "link", "set", peer, "up")

    def remove(self) -> None:
        """At once: with its namespace it would go some time later."""
        _ip("link", "del", self.link)

    def cut(self) -> None:
        _ip("link", "set", self.link, "down")

    def heal(self) -> None:
        _ip("link", "set", self.link, "up")


class Network:
    def __init__(self, name: str) -> None:
        self.name = name
        self.before = ("ip", "netns", "exec", name)
        """The prefix of a command that runs in it."""
        _ip("-n", name, "link", "set", "lo", "up")
        self.to_database = Way(name, 0)
        self.to_model = Way(name, 1)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    name = f"holdfast-{os.getpid()}"
    _ip("netns", "add", name)
    with contextlib.ExitStack() as undo:
        undo.callback(_ip, "netns", "del", name)
        made = Network(name)
        undo.callback(made.to_database.remove)
        undo.callback(made.to_model.remove)
        yield made


def can_be_made() -> bool:
    """Whether this user may, on this machine."""
    if shutil.which("ip") is None:
        return False
    try:
        with network():
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


@contextlib.asynccontextmanager
async def forwarded(host: str, connect: Connect) -> AsyncIterator[int]:
    """A port of that address, from which everything goes on to where `connect` leads."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await connect()
            await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
