"""Readings of a session as it happens: its events, text in flight, progress of tools, what is awaited while nothing
comes, and changes of its queue."""

import msgspec

from holdfast.events.event import Event
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.protocol.queue import QueuedView


class QueueChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The queue changed; `messages` is all of it."""

    messages: tuple[QueuedView, ...]


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The connection broke, or was restored. No reading is lost by it."""

    is_back: bool
    reason: str = ""


Reading = Event | Delta | Progress | WaitStatus | QueueChanged | Connection
