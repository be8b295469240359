"""Events of a log as they are served."""

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Position
from holdfast.events.message import without_opaque


class EventView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of the log as it is stored, without text that was added to a message for the model alone, and without
    the parts of reasoning that only its provider can read."""

    position: int
    id: str
    time: int
    type: str
    version: int
    data: msgspec.Raw

    @classmethod
    def of(cls, event: Event) -> "EventView":
        """The view of an event with the text that was added for the model, and without opaque parts of reasoning."""
        name, version, data = codec.encode(without_opaque(event.body))
        return cls(
            position=event.position, id=event.id, time=event.time, type=name, version=version, data=msgspec.Raw(data)
        )

    def event(self) -> Event:
        body = codec.decode(self.type, self.version, bytes(self.data))
        return Event(Position(self.position), EventId(self.id), self.time, body)


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[EventView, ...]
    cursor: str
    """The `after` of the next page."""
