"""How long a call waits for its model, and the wait itself: until the answer begins, then from read to read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.model import ModelError

T = TypeVar("T")


class ModelPatience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call waits for its model."""

    first_byte_seconds: float = 600.0
    """Until the answer begins: a local model may read a long conversation for minutes. Neither the headers of a
    response nor the frames that open a stream are its beginning: many servers send them before the model reads."""
    silence_seconds: float = 120.0
    """Between two reads of an answer that has begun."""


STANDARD_PATIENCE = ModelPatience()


class WaitedTooLong(TimeoutError):
    """A wait ended before anything came. `failure` is the error for people."""

    def __init__(self, failure: ModelError) -> None:
        super().__init__(failure.message)
        self.failure = failure


class CallWait:
    """The wait of one call for its response: first for its first byte, then from read to read."""

    def __init__(self, patience: ModelPatience, endpoint: ModelEndpoint) -> None:
        self._patience = patience
        self._endpoint = endpoint
        self._first_byte_by = asyncio.get_running_loop().time() + patience.first_byte_seconds
        self._has_bytes = False
        self._has_begun = False

    @asynccontextmanager
    async def response(self, sending: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """The response, once its headers are there."""
        async with AsyncExitStack() as stack:
            yield await self._limited(stack.enter_async_context(sending))

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """The bytes that have arrived, or the next ones; empty at the end."""
        # A timer for each read would cost as much as decoding it.
        data = response.content.read_nowait(-1) or await self._limited(response.content.readany())
        self._has_bytes = self._has_bytes or bool(data)
        return data

    def begun(self) -> None:
        """The bytes that were read last had a part of the answer: it has begun."""
        self._has_begun = True

    async def _limited(self, work: Awaitable[T]) -> T:
        patience, has_begun = self._patience, self._has_begun
        silent_by = asyncio.get_running_loop().time() + patience.silence_seconds
        # Signs of life before the answer, such as pings, may come for longer than the first byte is waited for.
        until = self._first_byte_by if not self._has_bytes else max(self._first_byte_by, silent_by)
        limit = asyncio.timeout_at(silent_by if has_begun else until)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            if has_begun:
                raise WaitedTooLong(self._endpoint.silence(patience.silence_seconds)) from None
            raise WaitedTooLong(self._endpoint.first_byte_timeout(patience.first_byte_seconds)) from None
