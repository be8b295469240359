"""What stands before the surface on every connection: the handshake, the token, and the few calls about the runtime.

On a port with a token nothing behind the gate exists for a connection until it has shown the token.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.server.copilot.frames import MAX_FRAME_BYTES
from holdfast.server.copilot.peer import INVALID_PARAMS, Handler, Peer, RpcError

PROTOCOL_VERSION: Final = 3

AUTHENTICATION_REQUIRED: Final = -32001
AUTHENTICATION_FAILED: Final = -32002

UNPROVEN_SECONDS: Final = 30.0
"""A connection that has not shown the token by then is ended."""

UNPROVEN_FRAME_BYTES: Final = 64 * 1024
"""A handshake is small; nobody fills our memory before it."""

UNPROVEN_ATTEMPTS: Final = 5
"""Wrong tokens until the connection is ended: tokens that people chose could be guessed."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What every gate of a listener knows."""

    behind: Callable[[Peer], Handler]
    """Makes what answers a connection that got through."""
    version: str
    shut_down: Callable[[], Awaitable[None]]
    """Puts away all that this process holds; the process ends by itself once that has been answered."""


class Gate:
    """The handler of one connection; what it does not know itself is for the one behind it."""

    def __init__(self, peer: Peer, terms: Terms, token: str | None) -> None:
        self._peer = peer
        self._terms = terms
        self._token = None if token is None else token.encode()
        self._attempts = 0
        self._behind = terms.behind(peer) if token is None else None
        self._waited = None if self._behind else self._wait()

    def _wait(self) -> asyncio.TimerHandle:
        self._peer.allow_frames_of(UNPROVEN_FRAME_BYTES)
        return asyncio.get_running_loop().call_later(UNPROVEN_SECONDS, self._peer.close, "it never showed the token")

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "connect":
            return self._connect(params)
        if self._behind is None:
            raise RpcError(AUTHENTICATION_REQUIRED, "AUTHENTICATION_REQUIRED")
        match method:
            case "ping":
                return self._pong(params.get("message"))
            case "status.get":
                return {"version": self._terms.version, "protocolVersion": PROTOCOL_VERSION}
            case "runtime.shutdown":
                return await self._terms.shut_down()
            case _:
                return await self._behind.handle(method, params)

    async def closed(self) -> None:
        if self._waited is not None:
            self._waited.cancel()
        if self._behind is not None:
            await self._behind.closed()

    def _connect(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._token is not None:
            self._prove(params.get("token"), self._token)
        return {"ok": True, "protocolVersion": PROTOCOL_VERSION, "version": self._terms.version}

    def _prove(self, shown: object, token: bytes) -> None:
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), token):
            self._attempts += 1
            if self._attempts == UNPROVEN_ATTEMPTS:
                self._peer.close("it showed a wrong token too often")
            raise RpcError(AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED")
        if self._behind is None:
            self._behind = self._terms.behind(self._peer)
            self._peer.allow_frames_of(MAX_FRAME_BYTES)
        if self._waited is not None:
            self._waited.cancel()

    @staticmethod
    def _pong(message: object) -> dict[str, Any]:
        if message is not None and not isinstance(message, str):
            raise RpcError(INVALID_PARAMS, "The message of a ping must be a string.")
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        text = "pong" if message is None else f"pong: {message}"
        return {"message": text, "timestamp": now, "protocolVersion": PROTOCOL_VERSION}
