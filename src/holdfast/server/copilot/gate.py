"""The gate in front of the surface on every connection: the handshake, the token check, and calls about the runtime.

On a port with a token, a connection reaches the surface only after it has sent the right token.
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
"""Timeout for sending the token; the connection is then closed."""

UNPROVEN_FRAME_BYTES: Final = 64 * 1024
"""Frame limit before the handshake, so that unauthenticated clients can't fill the memory. A handshake is small."""

UNPROVEN_ATTEMPTS: Final = 5
"""Wrong tokens accepted before the connection is closed: a token that a person chose could be guessed."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that all gates of a listener share."""

    connected: Callable[[Peer], Handler]
    """Makes the handler of a connection that passed the gate."""
    version: str
    shut_down: Callable[[], Awaitable[None]]
    """Closes everything that this process holds. The process exits by itself after the client has its answer."""


class ConnectionGate:
    """The first handler of one connection. It passes every method that it does not answer itself to the surface."""

    def __init__(self, peer: Peer, terms: Terms, token: str | None) -> None:
        self._peer = peer
        self._terms = terms
        self._token = None if token is None else token.encode()
        self._attempts = 0
        self._inner = terms.connected(peer) if token is None else None
        self._token_timeout = None if self._inner else self._start_token_timeout()

    def _start_token_timeout(self) -> asyncio.TimerHandle:
        self._peer.allow_frames_of(UNPROVEN_FRAME_BYTES)
        return asyncio.get_running_loop().call_later(UNPROVEN_SECONDS, self._peer.close, "it never showed the token")

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "connect":
            return self._connect(params)
        if self._inner is None:
            raise RpcError(AUTHENTICATION_REQUIRED, "AUTHENTICATION_REQUIRED")
        match method:
            case "ping":
                return self._pong(params.get("message"))
            case "status.get":
                return {"version": self._terms.version, "protocolVersion": PROTOCOL_VERSION}
            case "runtime.shutdown":
                return await self._terms.shut_down()
            case _:
                return await self._inner.handle(method, params)

    async def closed(self) -> None:
        if self._token_timeout is not None:
            self._token_timeout.cancel()
        if self._inner is not None:
            await self._inner.closed()

    def _connect(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._token is not None:
            self._check_token(params.get("token"), self._token)
        return {"ok": True, "protocolVersion": PROTOCOL_VERSION, "version": self._terms.version}

    def _check_token(self, candidate: object, token: bytes) -> None:
        # One write may bring many guesses; all of them are read before the first one is checked.
        if self._attempts >= UNPROVEN_ATTEMPTS:
            raise RpcError(AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED")
        if not isinstance(candidate, str) or not hmac.compare_digest(candidate.encode(), token):
            self._attempts += 1
            if self._attempts == UNPROVEN_ATTEMPTS:
                self._peer.close("it showed a wrong token too often")
            raise RpcError(AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED")
        if self._inner is None:
            self._inner = self._terms.connected(self._peer)
            self._peer.allow_frames_of(MAX_FRAME_BYTES)
        if self._token_timeout is not None:
            self._token_timeout.cancel()

    @staticmethod
    def _pong(message: object) -> dict[str, Any]:
        if message is not None and not isinstance(message, str):
            raise RpcError(INVALID_PARAMS, "The message of a ping must be a string.")
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        text = "pong" if message is None else f"pong: {message}"
        return {"message": text, "timestamp": now, "protocolVersion": PROTOCOL_VERSION}
