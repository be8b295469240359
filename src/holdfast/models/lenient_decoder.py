"""Decodes JSON into a struct and keeps all that fits: a malformed field counts as missing, a malformed entry of a list
is left out. It is slow: use it for what the strict decoder has refused."""

import json
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from holdfast.events.codec import to_bytes, without_surrogates

Shape = TypeVar("Shape", bound=msgspec.Struct)


def decode_leniently(payload: bytes, shape: type[Shape]) -> Shape:
    """The struct without its malformed parts. Raises ValueError if the payload is not JSON."""
    return mended(parse(payload), shape)


def parse(payload: bytes) -> Any:
    """The JSON value, with each byte and escape that is no character replaced. Raises ValueError if it is not JSON."""
    try:
        return without_surrogates(json.loads(payload.decode("utf-8", "replace"), strict=False))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def mended(value: Any, shape: type[Shape]) -> Shape:
    """The value as a struct, without its malformed parts."""
    if not isinstance(value, dict):
        return shape()
    fields = [field for field in msgspec.structs.fields(shape) if field.encode_name in value]
    fitting = {field.name: _fitting(value[field.encode_name], field.type) for field in fields}
    return shape(**{name: part for name, part in fitting.items() if part is not None})


def _fitting(value: Any, kind: Any) -> Any:
    """The value if it fits the type of a field, or its fitting parts; None if nothing fits."""
    for option in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(value, list) and get_origin(option) is list:
            entries = (_fitting(entry, get_args(option)[0]) for entry in value)
            return [entry for entry in entries if entry is not None]
        if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
            return mended(value, option)
    if kind is msgspec.Raw:
        return msgspec.Raw(to_bytes(value))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
