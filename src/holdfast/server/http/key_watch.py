"""Ends running requests whose key was revoked, or whose token has ended: long polls, streams, slow uploads.

Any process may revoke a key, without a hint to the others: so the keys of running requests are polled.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast.server.http.identity import Identity, not_signed_in, token_ended
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""The longest that a request outlives its key or its token."""


class KeyWatch:
    """One per process."""

    def __init__(self, clock: Clock, is_valid: Callable[[Identity], Awaitable[bool]]) -> None:
        self._clock = clock
        self._is_valid = is_valid
        self._running: dict[asyncio.Timeout, Identity] = {}
        self._polling: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def over(self, identity: Identity) -> AsyncIterator[None]:
        """Run a request of that identity. When its key is revoked, or its token ends, the request is cancelled and the
        reason raised. A write that has begun is done whole or not at all, as in a crash."""
        if not identity.may_end:
            yield
            return
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._running[deadline] = identity
                if self._polling is None or self._polling.done():
                    self._polling = asyncio.create_task(self._poll())
                try:
                    yield
                finally:
                    del self._running[deadline]
        except TimeoutError:
            if not deadline.expired():
                raise
            raise (token_ended() if identity.subject else not_signed_in()) from None

    async def _poll(self) -> None:
        """One task for all requests, as long as there are any."""
        while self._running:
            await self._clock.sleep(POLL_SECONDS)
            for identity in set(self._running.values()):
                if not await self._still_valid(identity):
                    self._end(identity)

    def _end(self, identity: Identity) -> None:
        now = asyncio.get_running_loop().time()
        for deadline, running in self._running.items():
            if running == identity and not deadline.expired():
                deadline.reschedule(now)

    async def _still_valid(self, identity: Identity) -> bool:
        try:
            return await self._is_valid(identity)
        except Exception:
            log.warning("could not look whether a key is still valid", exc_info=True)
            return True
