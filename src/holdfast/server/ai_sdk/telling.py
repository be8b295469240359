"""What one answer tells of a turn: where it begins, and where it ends. Pure.

An answer to something that was sent is a leg: from the start of the turn, or from where it waited for what was sent, to
where it waits next, or ends. Such an answer follows from the log alone, so that whoever sends the same again is told
the same. A reader who comes back is told the whole turn as one, however often it waited.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.events.event import PROGRESS, Event
from holdfast.events.ids import MessageId, Position, RequestId
from holdfast.events.message import UserMessage
from holdfast.events.turn import Claimed, StepStarted, TurnStarted, TurnWaiting
from holdfast.server.ai_sdk.chunks import Chunk
from holdfast.server.ai_sdk.projection import Projection
from holdfast.server.reader import Reading

BEGINNING: Final = Position(0)

_GOES_ON: Final = tuple(kind for kind in PROGRESS if kind not in (Claimed, TurnWaiting))
"""Events that show that a turn does not wait any more."""


class Leg:
    """From just behind `after` (0: from the start of the turn) to where the turn waits next, or ends.

    A wait for one of the requests that are `answered` is none: the answers were accepted one by one, and the turn may
    have looked in between."""

    def __init__(
        self, projection: Projection, *, after: Position = BEGINNING, answered: frozenset[RequestId] = frozenset()
    ) -> None:
        self.is_over = False
        self._projection = projection
        self._after = after
        self._answered = answered
        self._is_silent = True

    def take(self, readings: Iterable[Reading]) -> list[Chunk]:
        """Readings of the turn, from its first event on."""
        told: list[Chunk] = []
        for reading in readings:
            if self.is_over:
                break
            told += self._take(reading)
        return told

    def _take(self, reading: Reading) -> list[Chunk]:
        told = self._projection.take(reading)
        if isinstance(reading, Event):
            if _waits(reading):
                told += self._waiting(reading)
            if self._is_silent:
                told = self._begin(reading)
        elif self._is_silent:
            return []
        self.is_over = self.is_over or self._projection.has_ended
        return told

    def _waiting(self, event: Event) -> list[Chunk]:
        assert isinstance(event.body, TurnWaiting)
        if self._is_silent:
            return self._projection.pause()
        if self._answered.intersection(event.body.request_ids):
            return []
        self.is_over = True
        return self._projection.pause()

    def _begin(self, event: Event) -> list[Chunk]:
        """Where this answer begins; what came before it was told by an earlier one."""
        if self._projection.turn_id is None or event.position < self._after:
            return []
        self._is_silent = False
        return self._projection.start()


class Whole:
    """The turn from its start, its legs as one. Where it `waits_for` something, somebody must look whether it really
    does, and then `pause` it: an answer may have been accepted that is not in the log yet."""

    def __init__(self, projection: Projection) -> None:
        self.is_over = False
        self.waits_for: tuple[RequestId, ...] = ()
        self._projection = projection

    @property
    def has_started(self) -> bool:
        return self._projection.turn_id is not None

    def take(self, readings: Iterable[Reading]) -> list[Chunk]:
        told: list[Chunk] = []
        for reading in readings:
            if self.is_over:
                break
            told += self._take(reading)
        return told

    def _take(self, reading: Reading) -> list[Chunk]:
        told = self._projection.take(reading)
        if isinstance(reading, Event):
            if isinstance(reading.body, TurnStarted):
                told += self._projection.start()
            if _waits(reading):
                assert isinstance(reading.body, TurnWaiting)
                self.waits_for = reading.body.request_ids
            elif isinstance(reading.body, _GOES_ON):
                self.waits_for = ()
            self.is_over = self._projection.has_ended
        return told

    def pause(self) -> list[Chunk]:
        self.is_over = True
        return self._projection.pause()


class Finding:
    """Looks in what comes for the turn that a message is in. Until it is found, the beginning of a turn is kept."""

    def __init__(self, message_id: MessageId) -> None:
        self.is_found = False
        self.came_late = False
        """It is found, but joined a turn whose beginning was let go of."""
        self._message_id = message_id
        self._beginning: list[Reading] = []

    def take(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings of the turn, from its first event on, as far as they are here."""
        found: list[Reading] = []
        for reading in readings:
            if self.is_found:
                found.append(reading)
            elif isinstance(reading, Event):
                found += self._look_at(reading)
        return found

    def _look_at(self, event: Event) -> list[Reading]:
        match event.body:
            case TurnStarted():
                self._beginning = [event]
            case UserMessage(message_id=self._message_id):
                self.is_found, self.came_late = True, not self._beginning
                return [*self._beginning, event]
            case StepStarted():
                self._beginning = []
            case _ if self._beginning:
                self._beginning.append(event)
            case _:
                pass
        return []


def _waits(event: Event) -> bool:
    return isinstance(event.body, TurnWaiting) and event.body.reason == "requests"
