"""What is to be told to other processes at the next tick: one message for each session, and one for all wake-ups.

Bounded in every direction. What does not fit is not kept but forgotten, and the receivers are told so: they read from
the store instead.
"""

from typing import Final

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.live.live import Advanced, Grown, Hint, Lost, Progress
from holdfast.live.merge import joined
from holdfast.live.wire import encode_lost_all, encode_told, encode_woken

MAX_HINTS: Final = 200
"""Of one session in one tick. A message takes as long to read as a look at the store when there are more."""

MAX_BYTES: Final = 128_000
"""Of one session in one tick: enough for any tick of text, and far less than what tools put out."""

MAX_TOTAL_BYTES: Final = 8_000_000
"""Of all sessions, while Redis takes its time."""

MAX_SESSIONS: Final = 5_000
"""Beyond that nobody is named any more: everybody is told to look."""

WAKES_AT_ONCE: Final = 500
"""Whatever the names of sessions are, a message with so many is not too long."""


class Batch(msgspec.Struct, frozen=True):
    """All that one tick sends."""

    told: dict[Key, list[Hint]]
    woken: dict[Key, int | None]
    lost_all: bool

    def for_all(self, sender: str) -> list[bytes]:
        """The messages for every process."""
        inboxes = list(self.woken.items())
        parts = [inboxes[start : start + WAKES_AT_ONCE] for start in range(0, len(inboxes), WAKES_AT_ONCE)]
        messages = [encode_woken(sender, part) for part in parts]
        return [*messages, encode_lost_all(sender)] if self.lost_all else messages

    def for_sessions(self, sender: str) -> list[tuple[Key, bytes]]:
        """The messages for those who follow a session."""
        return [(key, _encoded(sender, key, hints)) for key, hints in self.told.items()]


def _encoded(sender: str, key: Key, hints: list[Hint]) -> bytes:
    try:
        data = encode_told(sender, key, hints)
    except (ValueError, TypeError, RecursionError):
        data = b""  # Half a character, say: the store has its own way with those.
    return data if 0 < len(data) <= MAX_BYTES else encode_told(sender, key, [Lost()])


class Outbox:
    """Filled by whoever publishes, emptied by the tick."""

    def __init__(self) -> None:
        self._told: dict[Key, list[Hint]] = {}
        self._sizes: dict[Key, int] = {}
        self._woken: dict[Key, int | None] = {}
        self._lost_all = False
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._told or self._woken or self._lost_all)

    def add(self, key: Key, hint: Hint) -> None:
        hints = self._told.get(key)
        if hints is None:
            hints = self._begin(key)
        if hints is None or (hints and isinstance(hints[0], Lost)):
            return  # The receivers will look at the store anyway.
        size = _size(hint)
        whole = joined(hints[-1], hint) if hints else None
        if whole is None:
            hints.append(hint)
        else:
            hints[-1] = whole
        self._sizes[key] += size
        self._bytes += size
        if len(hints) > MAX_HINTS or self._sizes[key] > MAX_BYTES or self._bytes > MAX_TOTAL_BYTES:
            self.lose(key)

    def lose(self, key: Key) -> None:
        """Tell those who follow it only that they missed something."""
        hints = self._told.get(key)
        if hints is None:
            hints = self._begin(key)
        if hints is not None:
            self._bytes -= self._sizes[key]
            self._sizes[key] = 0
            hints[:] = [Lost()]

    def wake(self, key: Key, tail: int | None) -> None:
        if len(self._woken) >= MAX_SESSIONS and key not in self._woken:
            self.lose_all()
        elif not self._lost_all:
            known = self._woken.get(key, 0)
            # "It changed otherwise" wakes in any case, which a tail that was heard of before does not.
            self._woken[key] = None if known is None or tail is None else max(known, tail)

    def lose_all(self) -> None:
        self._forget()
        self._lost_all = True

    def take(self) -> Batch:
        batch = Batch(self._told, self._woken, self._lost_all)
        self._forget()
        return batch

    def take_back(self, batch: Batch) -> None:
        """It was not sent, or nobody knows whether it was."""
        if batch.lost_all:
            self.lose_all()
        for key in batch.told:
            self.lose(key)
        for key, tail in batch.woken.items():
            self.wake(key, tail)

    def _begin(self, key: Key) -> list[Hint] | None:
        if self._lost_all:
            return None
        if len(self._told) >= MAX_SESSIONS:
            self.lose_all()
            return None
        self._sizes[key] = 0
        return self._told.setdefault(key, [])

    def _forget(self) -> None:
        self._told, self._sizes, self._woken = {}, {}, {}
        self._lost_all, self._bytes = False, 0


def _size(hint: Hint) -> int:
    """About how many bytes it makes."""
    match hint:
        case Grown(deltas=deltas):
            return sum(100 + len(delta.text) for delta in deltas)
        case Progress(text=text):
            return 100 + len(text)
        case Advanced(events=events):
            return sum(_event_size(event) for event in events)
        case _:
            return 20


def _event_size(event: Event) -> int:
    try:
        return 100 + len(codec.encode(event.body)[2])
    except (ValueError, TypeError, RecursionError):
        return MAX_BYTES  # What can't be written down is not sent either.
