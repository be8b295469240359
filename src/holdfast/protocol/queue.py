"""The queue of a session: messages that wait for their turn."""

import msgspec

from holdfast.events.message import PageContext
from holdfast.protocol.file import MessageFile


class QueuedView(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting message."""

    message_id: str
    text: str
    delivery: str
    accepted_at: int
    context: PageContext | None
    mode: str
    model: str | None
    thinking: int | None
    files: tuple[MessageFile, ...] = ()


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting messages in order; the first is the next."""

    messages: tuple[QueuedView, ...]
