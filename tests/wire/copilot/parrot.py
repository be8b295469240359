"""A surface that echoes its requests: enough to test a transport with."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from holdfast.app import Runtime
from holdfast.server.copilot.gate import Terms
from holdfast.server.copilot.listener import CopilotListener
from holdfast.server.copilot.peer import METHOD_NOT_FOUND, Peer, RpcError, RpcResult
from holdfast.server.errors import NotFound
from holdfast.store.errors import StoreUnavailable


class Parrot:
    """The surface: one handler for each connection, and a count of the closed ones."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.runtime = runtime
        self.open: set[ParrotHandler] = set()
        self.closed = 0
        self.changed = asyncio.Event()

    def connected(self, peer: Peer) -> "ParrotHandler":
        handler = ParrotHandler(self, peer)
        self.open.add(handler)
        self._tell()
        return handler

    def left(self, handler: "ParrotHandler") -> None:
        self.open.discard(handler)
        self.closed += 1
        self._tell()

    async def until_closed(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.closed < count:
                await self.changed.wait()

    async def close(self) -> None:
        pass

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class ParrotHandler:
    def __init__(self, parrot: Parrot, peer: Peer) -> None:
        self.parrot = parrot
        self.peer = peer
        self.at_work = 0
        self.most_at_work = 0
        self.seen: list[str] = []
        self.cancelled: list[str] = []
        self.go = asyncio.Event()
        self.times_closed = 0

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        self.seen.append(method)
        self.at_work += 1
        self.most_at_work = max(self.at_work, self.most_at_work)
        try:
            return await self._handle(method, params)
        except asyncio.CancelledError:
            self.cancelled.append(method)
            raise
        finally:
            self.at_work -= 1

    async def closed(self) -> None:
        self.times_closed += 1
        self.parrot.left(self)

    async def _handle(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "echo":
                return params
            case "raw":
                return msgspec.Raw(b'{"encoded":"already"}')
            case "unencodable":
                return object()
            case "answer":
                return RpcResult({"is": "answered"}, then=lambda: self.peer.notify("then", {"n": 1}))
            case "badly-followed":
                return RpcResult(None, then=lambda: self._fail())
            case "tell":
                for n in range(params["times"]):
                    self.peer.notify("told", {"n": n, "text": "x" * params.get("size", 0)})
                return None
            case "ask":
                return {"said": await self.peer.request("question", params)}
            case "hold":
                await self.go.wait()
                return "held"
            case "wait":
                with self.peer.waiting():
                    await self.go.wait()
                return "waited"
            case "go":
                self.go.set()
                self.go = asyncio.Event()
                return None
            case "print":
                print("a stray line")
                sys.stdout.flush()
                print("x" * params.get("size", 0), file=sys.stderr, flush=True)
                child = await asyncio.create_subprocess_exec("/bin/sh", "-c", "echo a stray child; cat")
                return await child.wait()
            case "process":
                seen = {name: os.environ.get(name) for name in params["variables"]}
                loaded = [name for name in params["modules"] if name in sys.modules]
                return {"variables": seen, "modules": loaded}
            case "connections":
                return {"open": len(self.parrot.open), "closed": self.parrot.closed}
            case "not-found":
                raise NotFound("session_not_found", "There is no such session.")
            case "disk-full":
                raise StoreUnavailable("store_disk_full", "The disk is full.")
            case "refuse":
                raise RpcError(-32099, "Refused", {"because": "so"})
            case "bug":
                self._fail()
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"Unhandled method {method}")

    def _fail(self) -> None:
        raise LookupError("a secret detail")


def parrot(runtime: Runtime, options: argparse.Namespace, environ: Mapping[str, str]) -> Parrot:
    return Parrot(runtime)


class Served(NamedTuple):
    parrot: Parrot
    listener: CopilotListener
    port: int
    shut_down: asyncio.Event

    def handler(self) -> ParrotHandler:
        """The handler of the one connected client."""
        (handler,) = self.parrot.open
        return handler


@asynccontextmanager
async def serving(*, token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[Served]:
    """A port in this process that a parrot serves."""
    shut_down = asyncio.Event()

    async def end() -> None:
        shut_down.set()

    parrot = Parrot()
    listener = CopilotListener(Terms(connected=parrot.connected, version="1.2.3", shut_down=end))
    try:
        yield Served(parrot, listener, await listener.listen(host, 0, token=token), shut_down)
    finally:
        await listener.close()
