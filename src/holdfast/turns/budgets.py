"""Whether model calls need money to be reserved: only where a limit holds."""

from typing import Final

from holdfast.events.ids import Owner
from holdfast.models.info import ModelInfo
from holdfast.store.clock import Clock
from holdfast.store.store import Store

RESERVED_TOKENS: Final = 16_384
"""The longest answer of a call for which money is reserved, beside its thinking: what is reserved for one call is
missing to all others of the same owner until it ends."""

KNOWN_SECONDS: Final = 1.0
"""For how long a process knows that an owner has no limits. A first limit holds for all calls after that time."""

MAX_KNOWN: Final = 4_096


class Budgets:
    """Knows, for a moment, which owners have no limits. The store decides, for each call of the others."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unlimited: dict[Owner, float] = {}
        """For each owner without limits, until when that is known."""

    async def hold(self, owner: Owner) -> bool:
        """Whether the calls of this owner need room in a budget. Raises `StoreUnavailable`: without an answer, no call
        is made."""
        limits = self._store.limits.spend
        if not limits.are_none:
            return True
        now = self._clock.monotonic()
        if self._unlimited.get(owner, 0) > now:
            return False
        found = await self._store.budget(owner)
        if not limits.caps(found.budget.at(found.time)).are_none or found.budget.planned:
            return True
        if len(self._unlimited) >= MAX_KNOWN:
            self._unlimited.clear()
        self._unlimited[owner] = now + KNOWN_SECONDS
        return False


def longest_answer(info: ModelInfo, input_tokens: int, thinking: int) -> int:
    """The longest answer, in tokens, that money is reserved for."""
    room = max(1, info.window - input_tokens)
    return min(RESERVED_TOKENS + thinking, info.max_output or room, room)
