"""Rates: messages into running turns, a number per owner in any minute; and counts of rarer acts."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.events.ids import Owner
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.server.errors import Conflict
from holdfast.server.http.errors import ApiError
from holdfast.store.clock import Clock

WINDOW_SECONDS: Final = 60.0
SOON_SECONDS: Final = 1.0
"""After this time it is known whether the messages that are just being accepted count."""


class PerMinute:
    """Counts acts under some names, in the memory of this process. The counts begin anew every minute."""

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._counts: Counter[str] = Counter()
        self._began_at = clock.monotonic()

    def take(self, name: str) -> bool:
        """Whether the act is within the rate; then it counts."""
        now = self._clock.monotonic()
        if now - self._began_at >= WINDOW_SECONDS:
            self._counts.clear()
            self._began_at = now
        is_free = self._counts[name] < self._most
        self._counts[name] += is_free
        return is_free

    @property
    def wait_seconds(self) -> float:
        """Until the counts begin anew."""
        return max(SOON_SECONDS, self._began_at + WINDOW_SECONDS - self._clock.monotonic())


class RateSlot:
    """A slot of an owner's rate, if one was free. It is given back unless it is kept."""

    def __init__(self, at: float, *, is_free: bool) -> None:
        self.at = at
        self.is_free = is_free
        self.is_kept = False

    def count(self, sent: Sent) -> Sent:
        """Keep the slot if the message went into a running turn. A duplicate is not counted: a retry gets its
        receipt."""
        self.is_kept = not sent.duplicate and not sent.found_idle
        return sent


class Rates:
    """Counts each owner's messages into running turns, in the memory of this process."""

    def __init__(self, clock: Clock, *, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._taken: dict[Owner, deque[RateSlot]] = {}
        self._forgotten_at = clock.monotonic()

    @contextmanager
    def reserve(self, owner: Owner, delivery: DeliveryChoice) -> Iterator[RateSlot]:
        """A slot for the message that is sent inside this block, reserved until it is known whether the message counts,
        so that concurrent messages can't exceed the rate. Whether a message goes into a running turn is known only when
        it is accepted, so without a free slot it may be sent to an idle session only; `ApiError` is raised if the
        session is busy."""
        slot = self._take(owner)
        try:
            yield slot
        except Conflict as error:
            if slot.is_free or delivery == "reject" or error.code != "busy":
                raise
            raise self._refusal(owner) from None
        finally:
            if slot.is_free and not slot.is_kept:
                self._give_back(owner, slot)

    def _refusal(self, owner: Owner) -> ApiError:
        """The error for an owner without a free slot."""
        kept = [slot.at for slot in self._taken.get(owner, ()) if slot.is_kept]
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

    def _take(self, owner: Owner) -> RateSlot:
        now = self._clock.monotonic()
        self._forget(owner, now)
        taken = self._taken.setdefault(owner, deque())
        slot = RateSlot(now, is_free=len(taken) < self._per_minute)
        if slot.is_free:
            taken.append(slot)
        return slot

    def _give_back(self, owner: Owner, slot: RateSlot) -> None:
        taken = self._taken.get(owner)
        if taken is not None and slot in taken:
            taken.remove(slot)
            if not taken:
                del self._taken[owner]

    def _forget(self, owner: Owner, now: float) -> None:
        """Drop slots older than a minute; once a minute also those of owners who never come back."""
        owners = [owner]
        if self._forgotten_at <= now - WINDOW_SECONDS:
            owners, self._forgotten_at = list(self._taken), now
        for each in owners:
            taken = self._taken.get(each, deque())
            while taken and taken[0].at <= now - WINDOW_SECONDS:
                taken.popleft()
            if not taken:
                self._taken.pop(each, None)
