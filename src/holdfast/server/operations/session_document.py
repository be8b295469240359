"""An exported session, cut into its events without parsing them.

Parsing a whole document at once would take many times its length in memory, and block all other work.
"""

import re
from typing import Final

import msgspec

from holdfast.server.json_bounds import breathe, tokens

MAX_DEPTH: Final = 128
"""Nested brackets. A value as deep as a surface allows is exported some levels deeper."""

MAX_REST_BYTES: Final = 100_000
"""The size of a document without its events: names and a title."""

_KEY: Final = re.compile(rb'"events"[ \t\r\n]*:[ \t\r\n]*\Z')
_OPEN: Final = frozenset(b"[{")
_COMMA: Final = ord(",")


class Misshapen(Exception):
    """A document that can't be cut into events; the message says why."""


class CutDocument(msgspec.Struct):
    """A document cut into its events and the rest."""

    rest: bytes
    """The document with an empty list of events."""
    places: list[tuple[int, int]]
    """The start and end offset of each event."""


def cut(data: bytes, *, max_events: int, max_values: int, max_values_each: int) -> CutDocument:
    """Cut the document. Raises `Misshapen`. The parts are not parsed: each may still be invalid JSON."""
    places: list[tuple[int, int]] = []
    level = values = begin = end = start = before = 0
    for at in tokens(data):
        if at < 0:
            breathe()
            continue
        token = data[at]
        values += 1
        if token in _OPEN:
            level += 1
            if level == 2 and not begin and _KEY.search(data, max(0, at - 64), at):
                begin = at + 1
            elif level == 3 and begin and not end:
                start, before = at, values
        elif token != _COMMA:
            level -= 1
            if level == 2 and begin and not end:
                places.append((start, at + 1))
                if values - before > max_values_each:
                    raise Misshapen(f"one of its events has more than {max_values_each:,} values")
            elif level == 1 and begin and not end:
                end = at
        if values > max_values or len(places) > max_events or not 0 <= level <= MAX_DEPTH:
            raise Misshapen(_problem(level, len(places), max_events, max_values))
    if begin and not end:
        raise Misshapen("its list of events has no end")
    _check_gaps(data, begin, places, end)
    if len(data) - (end - begin) > MAX_REST_BYTES:
        raise Misshapen("there is more in it than events")
    return CutDocument(data[:begin] + data[end:] if begin else data, places)


def _problem(level: int, events: int, max_events: int, max_values: int) -> str:
    if not 0 <= level <= MAX_DEPTH:
        return f"its brackets are nested more than {MAX_DEPTH} levels deep, or don't match"
    return f"it has more than {max_events:,} events" if events > max_events else f"it has over {max_values:,} values"


def _check_gaps(data: bytes, begin: int, places: list[tuple[int, int]], end: int) -> None:
    """Check that only a comma separates two events."""
    last, between = begin, b""
    for start, stop in places:
        if data[last:start].strip() != between:
            raise Misshapen("its list of events has something else in it")
        last, between = stop, b","
    if begin and data[last:end].strip():
        raise Misshapen("its list of events has something else in it")
