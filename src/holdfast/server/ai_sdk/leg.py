"""Where a stream about a turn begins and ends. Pure.

The response to a request is a leg: from the start of the turn, or from the wait that the request answers, to the turn's
next wait or its end. A leg follows from the log alone, so that the same request again gets the same chunks. A reader
that reconnects gets the whole turn as one, however often it waited.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.events.event import PROGRESS, Event
from holdfast.events.ids import MessageId, Position, RequestId
from holdfast.events.message import UserMessage
from holdfast.events.turn import Claimed, StepStarted, TurnStarted, TurnWaiting
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.reader import Reading

BEGINNING: Final = Position(0)

_GOES_ON: Final = tuple(kind for kind in PROGRESS if kind not in (Claimed, TurnWaiting))
"""Events that show that a turn no longer waits."""


class Leg:
    """From just after the position `after` (0: from the start of the turn) to the turn's next wait, or its end.

    A wait for one of the `answered` requests does not end the leg: the answers were accepted one by one, and the turn
    may have waited again in between."""

    def __init__(
        self, projection: UiProjection, *, after: Position = BEGINNING, answered: frozenset[RequestId] = frozenset()
    ) -> None:
        self.is_over = False
        self._projection = projection
        self._after = after
        self._answered = answered
        self._is_silent = True

    def take(self, readings: Iterable[Reading]) -> list[UiChunk]:
        """The chunks for readings of the turn, which begin with its first event."""
        chunks: list[UiChunk] = []
        for reading in readings:
            if self.is_over:
                break
            chunks += self._take(reading)
        return chunks

    def _take(self, reading: Reading) -> list[UiChunk]:
        chunks = self._projection.take(reading)
        if isinstance(reading, Event):
            if _waits(reading):
                chunks += self._wait(reading)
            if self._is_silent:
                chunks = self._begin(reading)
        elif self._is_silent:
            return []
        self.is_over = self.is_over or self._projection.has_ended
        return chunks

    def _wait(self, event: Event) -> list[UiChunk]:
        assert isinstance(event.body, TurnWaiting)
        if self._is_silent:
            return self._projection.pause()
        if self._answered.intersection(event.body.request_ids):
            return []
        self.is_over = True
        return self._projection.pause()

    def _begin(self, event: Event) -> list[UiChunk]:
        """Begin the leg, if this event is where it begins; earlier events belong to earlier legs."""
        if self._projection.turn_id is None or event.position < self._after:
            return []
        self._is_silent = False
        return self._projection.start()


class WholeTurn:
    """The turn from its start, its legs as one. While it `waits_for` requests, the caller must check that they are
    unanswered, and then `pause` it: an accepted answer may not be in the log yet."""

    def __init__(self, projection: UiProjection) -> None:
        self.is_over = False
        self.waits_for: tuple[RequestId, ...] = ()
        self._projection = projection

    @property
    def has_started(self) -> bool:
        return self._projection.turn_id is not None

    def take(self, readings: Iterable[Reading]) -> list[UiChunk]:
        chunks: list[UiChunk] = []
        for reading in readings:
            if self.is_over:
                break
            chunks += self._take(reading)
        return chunks

    def _take(self, reading: Reading) -> list[UiChunk]:
        chunks = self._projection.take(reading)
        if isinstance(reading, Event):
            if isinstance(reading.body, TurnStarted):
                chunks += self._projection.start()
            if _waits(reading):
                assert isinstance(reading.body, TurnWaiting)
                self.waits_for = reading.body.request_ids
            elif isinstance(reading.body, _GOES_ON):
                self.waits_for = ()
            self.is_over = self._projection.has_ended
        return chunks

    def pause(self) -> list[UiChunk]:
        self.is_over = True
        return self._projection.pause()


class TurnFinder:
    """Finds the turn of a message among readings. Until the message is found, the beginning of each turn is kept."""

    def __init__(self, message_id: MessageId) -> None:
        self.is_found = False
        self.came_late = False
        """The message is found, but joined a turn whose beginning was dropped."""
        self._message_id = message_id
        self._beginning: list[Reading] = []

    def take(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings that belong to the message's turn, from the turn's first event on."""
        of_turn: list[Reading] = []
        for reading in readings:
            if self.is_found:
                of_turn.append(reading)
            elif isinstance(reading, Event):
                of_turn += self._look_at(reading)
        return of_turn

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
