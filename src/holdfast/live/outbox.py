"""The hints that go to other processes at the next tick: one message for each session, and one for all wake-ups.

Everything is bounded. Hints that do not fit are dropped, and the receivers get `Lost` instead: they read the store.
"""

from typing import Final

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.live.live import Advanced, Grown, Hint, Lost, Progress, WaitStatus
from holdfast.live.merge import merged
from holdfast.live.wire import encode_hints, encode_lost_all, encode_wake_ups

MAX_HINTS: Final = 200
"""Hints of one session in one tick. Decoding more of them takes as long as reading the store."""

MAX_BYTES: Final = 128_000
"""Bytes of one session in one tick: enough for any tick of text, and far less than the output of tools."""

MAX_TOTAL_BYTES: Final = 8_000_000
"""Bytes of all sessions together, while Redis is slow."""

MAX_SESSIONS: Final = 5_000
"""Sessions in one tick. Beyond that the outbox drops all names, and every process reads the store."""

WAKES_AT_ONCE: Final = 500
"""Wake-ups in one message: with this many it stays below `MAX_MESSAGE_BYTES`, however long the session names are."""


class Batch(msgspec.Struct, frozen=True):
    """The messages of one tick."""

    hints: dict[Key, list[Hint]]
    wake_ups: dict[Key, int | None]
    lost_all: bool

    def for_all(self, sender: str) -> list[bytes]:
        """The messages for every process."""
        inboxes = list(self.wake_ups.items())
        parts = [inboxes[start : start + WAKES_AT_ONCE] for start in range(0, len(inboxes), WAKES_AT_ONCE)]
        messages = [encode_wake_ups(sender, part) for part in parts]
        return [*messages, encode_lost_all(sender)] if self.lost_all else messages

    def for_sessions(self, sender: str) -> list[tuple[Key, bytes]]:
        """The messages for the subscribers of each session."""
        return [(key, _encoded(sender, key, hints)) for key, hints in self.hints.items()]


def _encoded(sender: str, key: Key, hints: list[Hint]) -> bytes:
    try:
        data = encode_hints(sender, key, hints)
    except (ValueError, TypeError, RecursionError):
        data = b""  # A lone surrogate, for example: the store replaces those, a message can't carry them.
    return data if 0 < len(data) <= MAX_BYTES else encode_hints(sender, key, [Lost()])


class Outbox:
    """Collects published hints until the next tick takes them."""

    def __init__(self) -> None:
        self._hints: dict[Key, list[Hint]] = {}
        self._sizes: dict[Key, int] = {}
        self._wake_ups: dict[Key, int | None] = {}
        self._lost_all = False
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._hints or self._wake_ups or self._lost_all)

    def add(self, key: Key, hint: Hint) -> None:
        hints = self._hints.get(key)
        if hints is None:
            hints = self._begin(key)
        if hints is None or (hints and isinstance(hints[0], Lost)):
            return  # The receivers will read the store anyway.
        size = _size(hint)
        combined = merged(hints[-1], hint) if hints else None
        if combined is None:
            hints.append(hint)
        else:
            hints[-1] = combined
        self._sizes[key] += size
        self._bytes += size
        if len(hints) > MAX_HINTS or self._sizes[key] > MAX_BYTES or self._bytes > MAX_TOTAL_BYTES:
            self.lose(key)

    def lose(self, key: Key) -> None:
        """Replace the session's hints with `Lost`: its subscribers will read the store."""
        hints = self._hints.get(key)
        if hints is None:
            hints = self._begin(key)
        if hints is not None:
            self._bytes -= self._sizes[key]
            self._sizes[key] = 0
            hints[:] = [Lost()]

    def wake(self, key: Key, tail: int | None) -> None:
        if len(self._wake_ups) >= MAX_SESSIONS and key not in self._wake_ups:
            self.lose_all()
        elif not self._lost_all:
            known = self._wake_ups.get(key, 0)
            # None (a change without a put) always wakes; a tail that the receiver knows already does not.
            self._wake_ups[key] = None if known is None or tail is None else max(known, tail)

    def lose_all(self) -> None:
        self._forget()
        self._lost_all = True

    def take(self) -> Batch:
        batch = Batch(self._hints, self._wake_ups, self._lost_all)
        self._forget()
        return batch

    def take_back(self, batch: Batch) -> None:
        """Put back a batch that was not sent, or whose sending has an unknown outcome."""
        if batch.lost_all:
            self.lose_all()
        for key in batch.hints:
            self.lose(key)
        for key, tail in batch.wake_ups.items():
            self.wake(key, tail)

    def _begin(self, key: Key) -> list[Hint] | None:
        if self._lost_all:
            return None
        if len(self._hints) >= MAX_SESSIONS:
            self.lose_all()
            return None
        self._sizes[key] = 0
        return self._hints.setdefault(key, [])

    def _forget(self) -> None:
        self._hints, self._sizes, self._wake_ups = {}, {}, {}
        self._lost_all, self._bytes = False, 0


def _size(hint: Hint) -> int:
    """The approximate size of the encoded hint in bytes."""
    match hint:
        case Grown(deltas=deltas):
            return sum(100 + len(delta.text) for delta in deltas)
        case Progress(text=text):
            return 100 + len(text)
        case WaitStatus():
            return 200
        case Advanced(events=events):
            return sum(_event_size(event) for event in events)
        case _:
            return 20


def _event_size(event: Event) -> int:
    try:
        return 100 + len(codec.encode(event.body)[2])
    except (ValueError, TypeError, RecursionError):
        return MAX_BYTES  # An event that can't be encoded is not sent: this size turns it into `Lost`.
