"""Encodes events and inbox items to bytes and decodes them. Everywhere else an event is a typed value.

Any text can be stored: NUL is kept, and a lone surrogate (half a character, which UTF-8 can't encode) becomes U+FFFD.
"""

from typing import Any, Union

import msgspec

from holdfast.events import inbox, upcast
from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS, SHOWN, Encoded, Unknown, type_of
from holdfast.events.message import UserMessage

_KNOWN = {str(kind.__struct_config__.tag): kind for kind in (*RECORDS, *PROGRESS)}
_VERSIONS = {name: upcast.version_of(name) for name in _KNOWN}
_RECORD_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in RECORDS)
SHOWN_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in SHOWN)
"""The type tags of the events in `SHOWN`."""

_encoder = msgspec.json.Encoder()
_body_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[(*RECORDS, *PROGRESS)])
_item_decoder: msgspec.json.Decoder[inbox.Item] = msgspec.json.Decoder(inbox.Item)


class _Kind(msgspec.Struct, frozen=True):
    """The part of an inbox item that every release writes."""

    kind: str


_kind_decoder = msgspec.json.Decoder(_Kind)


def encode(body: Body) -> tuple[str, int, bytes]:
    """The body as (type, version, data)."""
    if isinstance(body, Encoded):
        return body.kept_type, body.kept_version, body.data
    if isinstance(body, Unknown):
        return body.original_type, body.original_version, bytes(body.data)
    name = type_of(body)
    return name, _VERSIONS[name], to_bytes(body)


def encoded(body: Body) -> Encoded:
    """The body in the form that a store writes."""
    said = body.content.encode("utf-8", "surrogatepass") if isinstance(body, UserMessage) else None
    return Encoded(*encode(body), said)


def said(body: Body) -> str | None:
    """The text that a person wrote, if the event is a user message; else None."""
    match body:
        case UserMessage(content=text):
            return str(without_surrogates(text))
        case Encoded(said=bytes(text)):
            return str(without_surrogates(text.decode("utf-8", "surrogatepass")))
        case _:
            return None


def decode(event_type: str, version: int, data: bytes | memoryview) -> Body:
    """The inverse of `encode`; data of an older version is upcast to this release's version."""
    if event_type not in _KNOWN or version > _VERSIONS[event_type]:
        return Unknown(original_type=event_type, original_version=version, data=msgspec.Raw(bytes(data)))
    if version == _VERSIONS[event_type]:
        body: Body = _body_decoder.decode(data)
        return body
    lifted = upcast.lift(event_type, version, msgspec.json.decode(data))
    return msgspec.convert(lifted, _KNOWN[event_type])


def is_record(event_type: str) -> bool:
    """Whether an event of this type may be appended without a lease."""
    return event_type in _RECORD_TYPES


def encode_item(item: inbox.Item | inbox.UnknownItem) -> bytes:
    return bytes(item.payload) if isinstance(item, inbox.UnknownItem) else to_bytes(item)


def decode_item(data: bytes) -> inbox.Item | inbox.UnknownItem:
    """The inverse of `encode_item`. An item of a kind or shape that only a newer release knows is kept as its bytes;
    bytes that no release wrote raise an error."""
    try:
        return _item_decoder.decode(data)
    except msgspec.ValidationError:
        return inbox.UnknownItem(kind=_kind_decoder.decode(data).kind, payload=msgspec.Raw(data))


def arguments(text: str) -> Any:
    """The decoded arguments of a tool call; text that is not JSON stays text."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def to_bytes(value: Any) -> bytes:
    """JSON in UTF-8. Only text with a lone surrogate takes the slow path."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(without_surrogates(msgspec.to_builtins(value)))


def size_of(text: str) -> int:
    """The size of any text in the store, in bytes."""
    return len(text.encode("utf-8", "surrogatepass"))


def without_surrogates(value: Any) -> Any:
    """The same value with every lone surrogate in its text replaced by U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
        case list() | tuple():
            return [without_surrogates(v) for v in value]
        case _:
            return value
