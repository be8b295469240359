"""How often somebody may do something: at most so many in any minute."""

from collections import deque

from holdfast.events.ids import Owner
from holdfast.server.http.errors import ApiError
from holdfast.store.clock import Clock

WINDOW_SECONDS = 60.0


class Rates:
    """Messages into running turns, counted for each owner in the memory of this process."""

    def __init__(self, clock: Clock, *, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._taken: dict[Owner, deque[float]] = {}

    def take(self, owner: Owner) -> None:
        """Count one more; raises when it is one too many, and then it is not counted."""
        now = self._clock.monotonic()
        self._forget(now)
        taken = self._taken.setdefault(owner, deque())
        if len(taken) >= self._per_minute:
            raise ApiError(
                429,
                "too_many_messages",
                f"At most {self._per_minute} messages a minute go into running turns. Send it again in a moment.",
                retry_after=round(taken[0] + WINDOW_SECONDS - now, 1),
            )
        taken.append(now)

    def _forget(self, now: float) -> None:
        """Only those who sent something within the last minute are kept in mind."""
        for owner, taken in list(self._taken.items()):
            while taken and taken[0] <= now - WINDOW_SECONDS:
                taken.popleft()
            if not taken:
                del self._taken[owner]
