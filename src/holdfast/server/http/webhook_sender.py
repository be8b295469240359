"""Sends webhooks to one address of another system.

It imports aiohttp (a fifth of a second): import it only where another system is configured.
"""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long the other system may take."""


class WebhookSender:
    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int | None:
        """Send a message, and return the status of the answer. None: nobody answered; it may have arrived."""
        assert self._session is not None, "entered first"
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("a webhook was not answered: %s", error)
            return None
