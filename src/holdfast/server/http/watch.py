"""Ends every request that is under way when its key is revoked: a long poll, a stream, a body that comes slowly.

A key may be revoked by any process, and nothing tells of it: while a request is under way its key is looked up again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How long a request outlives its key at the most."""


class Watch:
    """One per process."""

    def __init__(self, clock: Clock, is_valid: Callable[[Identity], Awaitable[bool]]) -> None:
        self._clock = clock
        self._is_valid = is_valid
        self._under_way: dict[asyncio.Timeout, Identity] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def over(self, identity: Identity) -> AsyncIterator[None]:
        """Work for somebody. It is cancelled, and `not_known` raised, when they would not be let in any more. A write
        that was begun is done whole or not at all, as in a crash."""
        if not identity.key_id:
            yield  # Whoever came without a key can't lose one.
            return
        ending = asyncio.timeout(None)
        try:
            async with ending:
                self._under_way[ending] = identity
                if self._looking is None or self._looking.done():
                    self._looking = asyncio.create_task(self._look())
                try:
                    yield
                finally:
                    del self._under_way[ending]
        except TimeoutError:
            if not ending.expired():
                raise
            raise not_known() from None

    async def _look(self) -> None:
        """One task for all requests, while there are any."""
        while self._under_way:
            await self._clock.sleep(LOOK_SECONDS)
            for identity in set(self._under_way.values()):
                if not await self._still_valid(identity):
                    self._end(identity)

    def _end(self, identity: Identity) -> None:
        now = asyncio.get_running_loop().time()
        for ending, of in self._under_way.items():
            if of == identity and not ending.expired():
                ending.reschedule(now)

    async def _still_valid(self, identity: Identity) -> bool:
        try:
            return await self._is_valid(identity)
        except Exception:
            log.warning("could not look whether a key is still valid", exc_info=True)
            return True


def not_known() -> ApiError:
    return ApiError(
        401,
        "not_signed_in",
        "Show who asks, with the header `Authorization: Bearer …`: the token that `holdfast serve` printed, or an API "
        "key.",
        headers={"www-authenticate": "Bearer"},
    )
