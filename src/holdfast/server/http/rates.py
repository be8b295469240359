"""How often somebody may do something: at most so many in any minute."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.events.ids import Owner
from holdfast.server.http.errors import ApiError
from holdfast.store.clock import Clock

WINDOW_SECONDS: Final = 60.0
SOON_SECONDS: Final = 1.0
"""By then it is known of what is just being accepted whether it counts."""


class Taken:
    """One of an owner's, or none if none was left. It goes back unless it is kept."""

    def __init__(self, at: float, *, is_there: bool) -> None:
        self.at = at
        self.is_there = is_there
        self.is_kept = False

    def keep(self) -> None:
        self.is_kept = True


class Rates:
    """Messages into running turns, counted for each owner in the memory of this process."""

    def __init__(self, clock: Clock, *, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._taken: dict[Owner, deque[Taken]] = {}
        self._forgotten_at = clock.monotonic()

    @contextmanager
    def taken(self, owner: Owner) -> Iterator[Taken]:
        """One is counted while it is not known yet whether it counts, so that many at once are not too many."""
        one = self._take(owner)
        try:
            yield one
        finally:
            if one.is_there and not one.is_kept:
                self._give_back(owner, one)

    def refusal(self, owner: Owner) -> ApiError:
        """What somebody is told who has none left."""
        kept = [one.at for one in self._taken.get(owner, ()) if one.is_kept]
        wait = (
            kept[0] + WINDOW_SECONDS - self._clock.monotonic()
            if kept and len(kept) >= self._per_minute
            else SOON_SECONDS
        )
        return ApiError(
            429,
            "too_many_messages",
            f"At most {self._per_minute} messages a minute go into running turns. Send it again in a moment.",
            retry_after=round(wait, 1),
        )

    def _take(self, owner: Owner) -> Taken:
        now = self._clock.monotonic()
        self._forget(owner, now)
        taken = self._taken.setdefault(owner, deque())
        one = Taken(now, is_there=len(taken) < self._per_minute)
        if one.is_there:
            taken.append(one)
        return one

    def _give_back(self, owner: Owner, one: Taken) -> None:
        taken = self._taken.get(owner)
        if taken is not None and one in taken:
            taken.remove(one)
            if not taken:
                del self._taken[owner]

    def _forget(self, owner: Owner, now: float) -> None:
        """What is older than a minute; once a minute also of those who never come back."""
        owners = [owner]
        if self._forgotten_at <= now - WINDOW_SECONDS:
            owners, self._forgotten_at = list(self._taken), now
        for each in owners:
            taken = self._taken.get(each, deque())
            while taken and taken[0].at <= now - WINDOW_SECONDS:
                taken.popleft()
            if not taken:
                self._taken.pop(each, None)
