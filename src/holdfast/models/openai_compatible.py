"""Models that speak OpenAI's chat completions: OpenAI itself, OpenRouter, Ollama, vLLM and many more.

One HTTP call for each answer, closed as soon as the iterator is. The key goes to the base URL's host and nowhere else:
not after a redirect, not into a message, a repr or a log.

Importing this module costs a fifth of a second (aiohttp), so import it where a model is opened, not before.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict

from holdfast.models.chat_failure import Endpoint, retry_after_seconds
from holdfast.models.chat_request import MaxTokensField, encode_messages, encode_request
from holdfast.models.chat_stream import ChatStream
from holdfast.models.errors import BadBaseUrl, ModelNotUsable
from holdfast.models.model import Chunk, ModelError, ModelRequest

__all__ = ["OpenAICompatible", "encode_messages"]

MAX_ERROR_BYTES = 64 * 1024
"""What is read of a refusal: more than any provider's sentence."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""What is read of an answer that does not stream: more than any model writes."""

KEEP_ALIVE_SECONDS = 30.0
"""How long an idle connection is kept for the next step. Providers close theirs after a minute or more."""

END_GRACE_SECONDS = 0.1
"""How long the end of a whole answer is awaited, so that its connection can be used again."""

_SECRET_HEADER_WORDS = ("authorization", "key", "token", "secret", "cookie")


class OpenAICompatible:
    """A model behind a chat completions API. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        name: str,
        api_key: str | None = None,
        headers: Mapping[str, str] = {},
        connect_timeout_seconds: float = 10.0,
        read_timeout_seconds: float = 120.0,
        max_tokens_field: MaxTokensField = "max_tokens",
    ) -> None:
        self._name = name
        self._model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = _headers(api_key, headers)
        self._endpoint = Endpoint(host=_host(base_url), secrets=_secrets(api_key, headers))
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._max_tokens_field = max_tokens_field
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"OpenAICompatible(name={self._name!r}, host={self._endpoint.host!r})"

    @property
    def name(self) -> str:
        return self._name

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

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        """Make the call: one batch for each network read. A whole answer ends with its usage and `Finished`."""
        body = encode_request(request, model=self._model, max_tokens_field=self._max_tokens_field)
        answer = ChatStream(self._endpoint)
        try:
            async with self._opened().post(self._url, data=body, allow_redirects=False) as response:
                await self._refuse_failure(response)
                if not request.stream or _is_json(response):
                    yield self._whole(answer, await _read_all(response, MAX_ANSWER_BYTES))
                while not answer.over:
                    data = await response.content.readany()
                    if chunks := answer.feed(data) if data else answer.end():
                        yield chunks
                await _reach_end(response)
        except (aiohttp.ClientError, OSError) as error:
            if not answer.finished:
                raise self._failure_of(error) from None
        if not answer.over:
            # The connection broke, but all of the answer was here.
            yield answer.end()
        if answer.failure is not None:
            raise answer.failure

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # How many calls run at a time is decided by who makes them.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=self._connect_timeout_seconds,
                    sock_connect=self._connect_timeout_seconds,
                    sock_read=self._read_timeout_seconds,
                ),
            )
        return self._session

    async def _refuse_failure(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            body = await _read_all(response, MAX_ERROR_BYTES)
            wait = retry_after_seconds(response.headers, now=time.time())
            raise self._endpoint.from_status(response.status, body, retry_after_seconds=wait)
        if "html" in response.content_type:
            raise self._endpoint.garbage("a web page", status=200)

    def _whole(self, answer: ChatStream, body: bytes) -> list[Chunk]:
        if len(body) >= MAX_ANSWER_BYTES:
            raise self._endpoint.garbage("an answer that is too long")
        return answer.whole(body)

    def _failure_of(self, error: aiohttp.ClientError | OSError) -> ModelError:
        match error:
            case aiohttp.ConnectionTimeoutError():
                return self._endpoint.connect_timeout(self._connect_timeout_seconds)
            case TimeoutError():
                return self._endpoint.read_timeout(self._read_timeout_seconds)
            case aiohttp.ClientConnectorCertificateError():
                return self._endpoint.unreachable("its certificate is not trusted")
            case aiohttp.ClientConnectorError():
                return self._endpoint.unreachable(error.os_error.strerror or str(error.os_error))
            case aiohttp.ClientResponseError():
                return self._endpoint.garbage("something that is not HTTP")
            case _:
                return self._endpoint.cut()


async def _read_all(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, or its first `limit` bytes."""
    body = bytearray()
    while len(body) < limit and (data := await response.content.readany()):
        body += data
    return bytes(body[:limit])


async def _reach_end(response: aiohttp.ClientResponse) -> None:
    """Let a whole answer end, so that its connection is free for the next call; a laggard's is closed."""
    if not response.content.at_eof():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_SECONDS):
                await response.content.readany()


def _is_json(response: aiohttp.ClientResponse) -> bool:
    """Some servers answer whole though asked to stream."""
    return response.content_type == "application/json"


def _host(base_url: str) -> str:
    """The host (and port) of a base URL, without a user name or password that it may carry."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise BadBaseUrl("it must look like http://127.0.0.1:11434/v1 or https://api.openai.com/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadBaseUrl("it must have no user name, password, query or fragment")
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def _headers(api_key: str | None, headers: Mapping[str, str]) -> CIMultiDict[str]:
    sent = CIMultiDict(
        {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            # Compression would hold tokens back.
            "Accept-Encoding": "identity",
            "User-Agent": "holdfast",
        }
    )
    if api_key:
        sent["Authorization"] = f"Bearer {api_key}"
    sent.update(headers)
    if not all(value.isascii() and value.isprintable() for value in sent.values()):
        raise ModelNotUsable("The model's key, or one of its headers, has a character that can't be in a header.")
    return sent


def _secrets(api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    secrets = [value for name, value in headers.items() if any(word in name.lower() for word in _SECRET_HEADER_WORDS)]
    return [*secrets, *(value.removeprefix("Bearer ") for value in secrets), api_key or ""]
