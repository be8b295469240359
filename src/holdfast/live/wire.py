"""Encodes hints for other processes: a version, the sender, and the hints.

Events travel in the encoding of the log, so that processes of two releases understand each other as well as they do
through the store. A message that does not decode is refused whole: a reader never gets half a message.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, Position, ToolCallId
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost, Progress, WaitStatus

VERSION: Final = 1

MAX_MESSAGE_BYTES: Final = 1_000_000
"""No message of ours is this long; a longer one is refused unread."""


class NotUnderstood(Exception):
    """The message is not ours, or a newer release sent it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SessionHints(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The hints of one session, in order."""

    key: Key
    hints: "tuple[_Hint, ...]"


class WakeUps(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The sessions whose inbox changed, each with its tail; None if no item was put."""

    inboxes: tuple[tuple[Key, int | None], ...]


class LostAll(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The sender dropped hints of too many sessions to name them: every process reads the store."""


class _Grown(msgspec.Struct, frozen=True, array_like=True, tag=1):
    head: int
    follows: tuple[int, int]
    deltas: tuple[Delta, ...]


class _Event(msgspec.Struct, frozen=True, array_like=True):
    position: int
    id: str
    time: int
    type: str
    version: int
    data: bytes


class _Advanced(msgspec.Struct, frozen=True, array_like=True, tag=2):
    events: tuple[_Event, ...]


class _Progress(msgspec.Struct, frozen=True, array_like=True, tag=3):
    tool_call_id: str
    text: str


class _Changed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    tail: int | None
    promoted: bool
    queue: bool


class _Lost(msgspec.Struct, frozen=True, array_like=True, tag=5):
    pass


class _Waits(msgspec.Struct, frozen=True, array_like=True, tag=6):
    status: WaitStatus


_Hint = _Grown | _Advanced | _Progress | _Changed | _Lost | _Waits
Message = SessionHints | WakeUps | LostAll

_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])
_message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_hints(sender: str, key: Key, hints: Sequence[Hint]) -> bytes:
    return _encode(sender, SessionHints(key, tuple(_to_wire(hint) for hint in hints)))


def encode_wake_ups(sender: str, inboxes: Sequence[tuple[Key, int | None]]) -> bytes:
    return _encode(sender, WakeUps(tuple(inboxes)))


def encode_lost_all(sender: str) -> bytes:
    return _encode(sender, LostAll())


def _encode(sender: str, message: Message) -> bytes:
    return _encoder.encode((VERSION, sender, message))


def decode(data: bytes) -> tuple[str, Message]:
    """The sender and its message. Raises `NotUnderstood`."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise NotUnderstood("too long to be ours")
    try:
        version, sender, body = _envelope_decoder.decode(data)
    except (ValueError, RecursionError):
        raise NotUnderstood("not ours") from None
    if version != VERSION:
        raise NotUnderstood(f"of version {version}, and this release speaks {VERSION}")
    try:
        return sender, _message_decoder.decode(body)
    except (ValueError, RecursionError):
        raise NotUnderstood("malformed") from None


def hints_of(message: SessionHints) -> list[Hint]:
    """The hints of the message. Raises `NotUnderstood`."""
    try:
        return [_from_wire(hint) for hint in message.hints]
    except (ValueError, TypeError, RecursionError):
        raise NotUnderstood("malformed") from None


def _to_wire(hint: Hint) -> _Hint:
    match hint:
        case Grown(head=head, follows=follows, deltas=deltas):
            return _Grown(head, follows, deltas)
        case Advanced(events=events):
            return _Advanced(tuple(_event_to_wire(event) for event in events))
        case Progress(tool_call_id=tool_call_id, text=text):
            return _Progress(tool_call_id, text)
        case Changed(tail=tail, promoted=promoted, queue=queue):
            return _Changed(tail, promoted, queue)
        case WaitStatus():
            return _Waits(hint)
        case Lost():
            return _Lost()


def _event_to_wire(event: Event) -> _Event:
    return _Event(event.position, event.id, event.time, *codec.encode(event.body))


def _from_wire(hint: _Hint) -> Hint:
    match hint:
        case _Grown(head=head, follows=follows, deltas=deltas):
            if not deltas:
                raise NotUnderstood("malformed")
            return Grown(Position(head), follows, deltas)
        case _Advanced(events=events):
            return Advanced(_consecutive(events))
        case _Progress(tool_call_id=tool_call_id, text=text):
            return Progress(ToolCallId(tool_call_id), text)
        case _Changed(tail=tail, promoted=promoted, queue=queue):
            return Changed(tail, promoted=promoted, queue=queue)
        case _Waits(status=status):
            return status
        case _Lost():
            return Lost()


def _consecutive(events: tuple[_Event, ...]) -> tuple[Event, ...]:
    """The decoded events, checked to be without gaps: a reader checks only the position of the first."""
    if not events or any(event.position != events[0].position + index for index, event in enumerate(events)):
        raise NotUnderstood("malformed")
    return tuple(
        Event(
            Position(event.position), EventId(event.id), event.time, codec.decode(event.type, event.version, event.data)
        )
        for event in events
    )
