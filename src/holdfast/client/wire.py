"""Sends requests to one server, and retries them when the connection breaks.

A request that changes something carries an id, under which the server carries it out once. So a request whose response
was lost is sent again until the caller's patience ends; only a request without an id is never repeated once it may have
arrived.
"""

import asyncio
import hmac
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec

from holdfast.client.address import Address, ClientKey, KeySource
from holdfast.client.errors import NotFound, NotHoldfast, NotSignedIn, Refused, Unavailable, Unreachable, refused
from holdfast.protocol.error import ErrorBody
from holdfast.protocol.health import NONCE, PROOF, Health
from holdfast.version import __version__

CONNECT_SECONDS: Final = 10.0

SILENT_SECONDS: Final = 40.0
"""A Holdfast server sends a byte on every stream at least every ten seconds, and answers every request sooner."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0

NO_SUCH_ADDRESS: Final = "not_found"
"""The error code for an unknown path, as opposed to an unknown session or task."""

T = TypeVar("T")


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes | Callable[[], AsyncIterable[bytes]] | None = None
    """Bytes, or a function that begins them anew for each try."""
    headers: Mapping[str, str] = {}
    is_repeatable: bool = True
    """The server carries the request out once, however often it is sent."""


class Wire:
    """The HTTP connection to one server. The key is sent to no other server, and redirects are not followed."""

    def __init__(self, address: Address, key: KeySource, *, patience_seconds: float) -> None:
        self.address = address
        self._key_source = key
        self._key: ClientKey | None = None
        self.patience_seconds = patience_seconds
        self._http: aiohttp.ClientSession | None = None
        self._version = ""

    def __repr__(self) -> str:
        return f"Wire({self.address.url})"

    async def open(self) -> None:
        """Check that a Holdfast server answers, before the key is sent."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        agent = {"user-agent": f"holdfast/{__version__}"}
        self._http = aiohttp.ClientSession(timeout=timeout, headers=agent, auto_decompress=True)
        self._version = (await self._health()).version
        self._key = self._key_source()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    # Requests

    async def ask(self, asked: WireRequest, kind: type[T]) -> T:
        """The response as a value of this type. Raises `ClientError`."""
        return self._decoded(await self.ask_bytes(asked), kind)

    async def ask_bytes(self, asked: WireRequest) -> bytes:
        """The body of the response. Retries while that is safe and the patience lasts."""
        deadline = time.monotonic() + self.patience_seconds
        for attempt, pause in enumerate(pauses()):
            try:
                return await self._once(asked)
            except NotFound:
                if asked.method == "DELETE" and asked.is_repeatable and attempt:
                    return b""  # An earlier try deleted it, and its response was lost.
                raise
            except (Unreachable, Unavailable) as error:
                if not _may_repeat(asked, error) or time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("there is always another pause")

    async def _once(self, asked: WireRequest) -> bytes:
        """Send the request once; or twice, if the server was restarted and has a new token."""
        try:
            return await self._sent(asked)
        except NotSignedIn:
            if not self._has_other_key():
                raise
        return await self._sent(asked)

    async def _sent(self, asked: WireRequest) -> bytes:
        async with self._exchange(asked, {"accept": "application/json"}) as response:
            return await response.read()

    async def pieces(self, asked: WireRequest) -> AsyncGenerator[bytes, None]:
        """The body of the response as it arrives, once. Raises `Unreachable` if it is cut."""
        async with self._exchange(asked, {}) as response:
            async for piece in response.content.iter_any():
                yield piece

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """A response that is read as it arrives. Raises `Unreachable` if the connection breaks."""
        asked = WireRequest(method="GET", path=path)
        sent = {"accept": "text/event-stream", **headers}
        try:
            async with self._exchange(asked, sent) as response:
                yield response.content
        except NotSignedIn as error:
            if self._has_other_key():
                raise Unreachable("The server was restarted.") from None
            raise error

    @asynccontextmanager
    async def _exchange(
        self, asked: WireRequest, headers: Mapping[str, str], *, is_signed: bool = True
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if self._http is None:
            raise RuntimeError("Enter it first: async with connect(url, key) as server")
        shown = await self._signed() if is_signed else {}
        try:
            async with self._http.request(
                asked.method,
                f"{self.address.url}{asked.path}",
                params=dict(asked.query),
                data=asked.body() if callable(asked.body) else asked.body,
                headers={**shown, **headers, **asked.headers},
                allow_redirects=False,
            ) as response:
                if response.status >= 300:
                    raise self._refused(response.status, await response.read())
                yield response
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"No server answers at {self.address.url}: {_why(error.os_error)}.") from None
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            message = f"The connection to {self.address.url} broke: {_why(error)}."
            raise Unreachable(message, was_sent=True) from None

    async def _signed(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if self._key.is_token:
            # Before each request: the connection may be new, and another program may have the port by now.
            self._key = await self._proven(self._key)
        return {"authorization": f"Bearer {self._key.secret.reveal()}"}

    async def _proven(self, token: ClientKey) -> ClientKey:
        """The token that the server proves to know: the given one, or a newer one in its file. Raises `NotSignedIn`."""
        nonce = secrets.token_urlsafe(16)
        headers = {"accept": "application/json", NONCE: nonce}
        async with self._exchange(WireRequest(method="GET", path="/healthz"), headers, is_signed=False) as response:
            said = response.headers.get(PROOF, "")
        for key in (token, self._key_source()):
            if key is not None and hmac.compare_digest(said.encode(), key.proof(nonce).encode()):
                return key
        raise NotSignedIn(
            401, "not_signed_in", f"The program that answers at {self.address.url} is not the server of this token."
        )

    def _has_other_key(self) -> bool:
        found = self._key_source()
        if found is None or found == self._key:
            return False
        self._key = found
        return True

    # Responses

    async def _health(self) -> Health:
        try:
            asked = WireRequest(method="GET", path="/healthz")
            async with self._exchange(asked, {"accept": "application/json"}, is_signed=False) as response:
                return msgspec.json.decode(await response.read(), type=Health)
        except (msgspec.MsgspecError, UnicodeDecodeError, Refused, NotHoldfast):
            raise self._not_holdfast() from None

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._other_age(f"its response can't be read ({error})") from None

    def _refused(self, status: int, body: bytes) -> Exception:
        try:
            problem = msgspec.json.decode(body, type=ErrorBody).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if status in (502, 503, 504):  # A proxy reports that its server is away.
                return Unavailable(status, "server_unreachable", f"{self.address.url} answers {status} for now.")
            return self._not_holdfast()
        if problem.code == NO_SUCH_ADDRESS:
            return self._other_age("it does not know this request")
        return refused(status, problem.code, problem.message, retry_after=problem.retry_after)

    def _not_holdfast(self) -> NotHoldfast:
        message = (
            f"The program that answers at {self.address.url} is not a Holdfast server. Check the URL and the port."
        )
        return NotHoldfast("not_holdfast", message)

    def _other_age(self, what: str) -> NotHoldfast:
        message = (
            f"The server at {self.address.url} is Holdfast {self._version}, and this is {__version__}: {what}. "
            "Upgrade the older of them."
        )
        return NotHoldfast("version_mismatch", message)


def pauses() -> Iterator[float]:
    """The pauses between tries, without end."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _may_repeat(asked: WireRequest, error: Unreachable | Unavailable) -> bool:
    if isinstance(error, Unavailable):
        return error.status != 500  # 500 is a bug, which a retry does not mend.
    return asked.is_repeatable or not error.was_sent


def _why(error: BaseException | None) -> str:
    """The reason in a few words: the error's own message may be long and technical."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "it was closed"
