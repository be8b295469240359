"""Models behind an HTTP API, in any of its wires: chat completions, Anthropic's Messages, OpenAI's Responses.

A wire encodes the call and decodes the answer; everything about the connection is here. Each answer is one HTTP call,
which closes with its iterator. The key goes to the base URL's host and nowhere else: not to the target of a redirect,
nor into a message, a repr or a log.

It imports aiohttp (a fifth of a second): import it only where a model is opened.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict

from holdfast.large_work import beside_if_large
from holdfast.models.address import host_of
from holdfast.models.call_wait import STANDARD_PATIENCE, CallWait, ModelPatience, WaitedTooLong
from holdfast.models.chat_failure import ModelEndpoint, Origin, retry_after_seconds
from holdfast.models.cost import priced
from holdfast.models.errors import BadHeader
from holdfast.models.headers import check_headers, is_sendable
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import Chunk, ModelError, ModelRequest, TokenUsage
from holdfast.models.streamed_answer import StreamedAnswer

MAX_ERROR_BYTES = 64 * 1024
"""The part of an error response that is read: more than any provider's message."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The largest answer that does not stream: more than any model writes."""

KEEP_ALIVE_SECONDS = 30.0
"""How long an idle connection stays open for the next step. Providers close theirs after a minute or more."""

END_GRACE_SECONDS = 0.1
"""How long to wait for the end of the response after a complete answer, so that the connection can be reused."""


class ModelWire(Protocol):
    """The protocol of an API for one model: what a call sends, and how its answer is read."""

    @property
    def model(self) -> str:
        """The model's name in a call."""
        ...

    @property
    def path(self) -> str:
        """The path of a call, below the base URL."""
        ...

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        """The headers of every request, with the key if there is one."""
        ...

    def encode(self, request: ModelRequest, *, reasoning_source: str) -> bytes:
        """The body of a call. Reasoning of another source than this one is left out."""
        ...

    def answer(self, endpoint: ModelEndpoint) -> StreamedAnswer:
        """The decoder of one answer."""
        ...


class HttpModel:
    """A model behind an HTTP API. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        wire: ModelWire,
        *,
        base_url: str,
        name: str,
        info: ModelInfo = UNKNOWN,
        api_key: str | None = None,
        headers: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        origin: Origin | None = None,
        connect_timeout_seconds: float = 10.0,
        patience: ModelPatience = STANDARD_PATIENCE,
    ) -> None:
        self._wire = wire
        self._name = name
        self._info = info
        self._base_url = base_url.rstrip("/")
        self._query = f"?{urlencode(query)}" if query else ""
        self._headers = _headers(wire.headers(api_key), headers)
        secrets = (api_key or "", *headers.values())
        self._endpoint = ModelEndpoint(host=host_of(base_url), secrets=secrets, origin=origin, path=wire.path)
        self._reasoning_source = f"{self._endpoint.host}{wire.path} {wire.model}"
        self._connect_timeout_seconds = connect_timeout_seconds
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None
        self._calls = 0
        self._is_retired = False

    def __repr__(self) -> str:
        return f"HttpModel(name={self._name!r}, host={self._endpoint.host!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def path(self) -> str:
        """The path of a call, below the base URL."""
        return self._wire.path

    @property
    def reasoning_source(self) -> str:
        return self._reasoning_source

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Safe to repeat."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def retire(self) -> None:
        """Close every connection once no call uses it. A later call still works."""
        self._is_retired = True
        if not self._calls:
            await self.close()

    def _encoded(self, request: ModelRequest) -> bytes:
        return self._wire.encode(request, reasoning_source=self._reasoning_source)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        """Make the call: one batch for each network read. A complete answer ends with its usage and `Finished`; the
        usage has a cost if the provider or the catalogue knows one. An answer that the provider pauses takes further
        calls."""
        endpoint = self._endpoint_of(request)
        body = await beside_if_large(request.size(), lambda: self._encoded(request))
        url = f"{self._base_url}{self._wire.path}{self._query}"
        answer = self._wire.answer(endpoint)
        self._calls += 1
        try:
            next_body: bytes | None = body
            while next_body is not None:
                waiting = CallWait(self._patience, endpoint)
                sending = self._opened().post(
                    url, data=next_body, headers=request.headers or None, allow_redirects=False
                )
                async with waiting.response(sending) as response:
                    await _refuse_failure(response, endpoint, waiting)
                    if not request.stream or _is_json(response):
                        whole = await _read_all(response, MAX_ANSWER_BYTES, waiting)
                        yield self._priced(_whole(answer, whole, endpoint))
                    while not answer.over:
                        data = await waiting.read(response)
                        if chunks := answer.feed(data) if data else answer.end():
                            waiting.begun()
                            yield self._priced(chunks)
                    await _reach_end(response)
                next_body = answer.resume(body)
        except (aiohttp.ClientError, OSError) as error:
            if not answer.finished:
                raise self._failure_of(error, endpoint) from None
        finally:
            self._calls -= 1
            if self._is_retired:
                await self.retire()
        if not answer.over:
            # The connection broke after the whole answer had arrived.
            yield self._priced(answer.end())
        if answer.failure is not None:
            raise answer.failure

    async def get(self, path: str) -> bytes:
        """GET the path. It carries the same key as a call, and raises the same errors."""
        waiting = CallWait(self._patience, self._endpoint)
        try:
            getting = self._opened().get(f"{self._base_url}{path}{self._query}", allow_redirects=False)
            async with waiting.response(getting) as response:
                await _refuse_failure(response, self._endpoint, waiting)
                return await _read_all(response, MAX_ANSWER_BYTES, waiting)
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure_of(error, self._endpoint) from None

    def _priced(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks, with a cost in their usage where the provider reported none."""
        price = self._info.price
        if price is None:
            return chunks
        return [priced(chunk, price) if isinstance(chunk, TokenUsage) else chunk for chunk in chunks]

    def _endpoint_of(self, request: ModelRequest) -> ModelEndpoint:
        if not request.headers:
            return self._endpoint
        try:
            check_headers(request.headers)
        except BadHeader as error:
            raise ModelError("model_refused", error.message, retryable=False) from None
        return self._endpoint.hiding(request.headers.values())

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The callers bound how many calls run at a time.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=self._connect_timeout_seconds,
                    sock_connect=self._connect_timeout_seconds,
                ),
            )
        return self._session

    def _failure_of(self, error: aiohttp.ClientError | OSError, endpoint: ModelEndpoint) -> ModelError:
        match error:
            case aiohttp.ConnectionTimeoutError():
                return endpoint.connect_timeout(self._connect_timeout_seconds)
            case WaitedTooLong():
                return error.failure
            case aiohttp.ClientConnectorCertificateError():
                return endpoint.unreachable("its certificate is not trusted")
            case aiohttp.ClientConnectorError():
                return endpoint.unreachable(error.os_error.strerror or str(error.os_error))
            case aiohttp.ClientResponseError():
                return endpoint.garbage("something that is not HTTP")
            case _:
                return endpoint.cut()


async def _refuse_failure(response: aiohttp.ClientResponse, endpoint: ModelEndpoint, waiting: CallWait) -> None:
    if response.status != 200:
        body = await _read_all(response, MAX_ERROR_BYTES, waiting)
        wait = retry_after_seconds(response.headers, now=time.time())
        raise endpoint.from_status(response.status, body, retry_after_seconds=wait)
    if "html" in response.content_type:
        raise endpoint.garbage("a web page", status=200)


def _whole(answer: StreamedAnswer, body: bytes, endpoint: ModelEndpoint) -> list[Chunk]:
    if len(body) >= MAX_ANSWER_BYTES:
        raise endpoint.garbage("an answer that is too long")
    return answer.whole(body)


async def _read_all(response: aiohttp.ClientResponse, limit: int, waiting: CallWait) -> bytes:
    """The body, or its first `limit` bytes."""
    body = bytearray()
    while len(body) < limit and (data := await waiting.read(response)):
        body += data
    return bytes(body[:limit])


async def _reach_end(response: aiohttp.ClientResponse) -> None:
    """Read the end of a complete response, so that its connection is free for the next call; a slow one is closed."""
    if not response.content.at_eof():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_SECONDS):
                await response.content.readany()


def _is_json(response: aiohttp.ClientResponse) -> bool:
    """Whether the response does not stream: some servers ignore `stream`."""
    return response.content_type == "application/json"


def _headers(of_wire: Mapping[str, str], headers: Mapping[str, str]) -> CIMultiDict[str]:
    sent = CIMultiDict(
        {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            # Compression would delay tokens.
            "Accept-Encoding": "identity",
            "User-Agent": "holdfast",
        }
    )
    sent.update(of_wire)
    check_headers(headers, may_authorize=True)
    sent.update(headers)
    if not all(map(is_sendable, sent.values())):
        raise BadHeader("the key has a character that a header can't carry")
    return sent
