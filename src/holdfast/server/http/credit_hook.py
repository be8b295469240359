"""The outside system that is asked before a person's budget is reset, and that may take something in return."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

import msgspec

from holdfast.events.ids import Owner
from holdfast.protocol.webhook_signature import signed_headers
from holdfast.store.clock import Clock

Post = Callable[[bytes, Mapping[str, str]], Awaitable[int | None]]
"""Sends a body with headers; the status of the answer, or None if there was none."""

CreditAnswer = Literal["granted", "declined", "unknown"]

_MAY_BE_REPEATED: Final = frozenset({408, 425, 429})
"""Refusals of a system that decides later."""

_NEVER_KNOWN: Final = frozenset({404, 410})


class CreditRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both messages say. The second has the id of the first."""

    credit_id: str
    owner: Owner
    tier: str
    day_microdollars: int | None
    """The limit of the day that is given back."""


class CreditHook:
    def __init__(self, post: Post, key: bytes, clock: Clock) -> None:
        self._post = post
        self._key = key
        self._clock = clock

    async def ask(self, request: CreditRequest) -> CreditAnswer:
        """Ask for a reset. Unknown: there was no answer, or an error of theirs; they may have granted it."""
        status = await self._send("budget.reset", request, request.credit_id)
        if status is None or status in _MAY_BE_REPEATED:
            return "unknown"
        if 200 <= status < 300:
            return "granted"
        return "declined" if 400 <= status < 500 else "unknown"

    async def refund(self, request: CreditRequest) -> bool:
        """Say that there was no reset. True: they know that now, or never granted it."""
        status = await self._send("budget.reset.refunded", request, f"{request.credit_id}:refund")
        return status is not None and (200 <= status < 300 or status in _NEVER_KNOWN)

    async def _send(self, kind: str, request: CreditRequest, message_id: str) -> int | None:
        body = msgspec.json.encode({"type": kind, "data": request})
        headers = signed_headers(message_id, body, [self._key], seconds=self._clock.now_ms() // 1000)
        return await self._post(body, {**headers, "content-type": "application/json"})
