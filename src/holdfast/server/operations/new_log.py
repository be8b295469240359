"""The log of a session that begins as a copy, built event by event and kept in its stored encoding."""

from collections.abc import Callable
from typing import Final

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Position
from holdfast.session.bounds import Bounds
from holdfast.session.compaction import given_up
from holdfast.session.endings import end_early, tasks_of_source
from holdfast.session.fold import fold_turn
from holdfast.session.inputs import Inputs
from holdfast.session.state import State

MAX_COPY_BYTES: Final = 64_000_000
"""A copied log is in memory as a whole for a moment; a larger one can be exported, and imported on the machine of the
server."""


class NewLog:
    """Collects events. `state` is folded from them without the history, which is enough to end a turn."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._events: list[Event] = []
        self.state = State()
        self.size = 0

    def add(self, time: int, body: Body) -> None:
        event = Event(Position(len(self._events) + 1), EventId(self._new_id()), time, body)
        fold_turn((event,), self.state)
        kept = codec.encoded(body)
        self.size += len(kept.data)
        self._events.append(Event(Position(0), event.id, time, kept))

    def close(self) -> None:
        """End an unfinished turn, and give up the tasks: they belong to the source."""
        now, state = self._events[-1].time, self.state
        bodies: list[Body] = []
        if state.turn is not None:
            inputs = Inputs(new_id=self._new_id, now=now, bounds=Bounds())
            bodies += end_early(state, inputs, state.turn, "interrupted").events
        else:
            bodies += given_up(state)
        bodies += tasks_of_source(state)
        for body in bodies:
            self.add(now, body)

    @property
    def last_time(self) -> int:
        return self._events[-1].time

    def events(self) -> tuple[Event, ...]:
        """All events, ready to be committed."""
        return tuple(self._events)
