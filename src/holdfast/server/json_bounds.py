"""Bounds on JSON from outside: they limit the time and the memory of parsing before the parser runs.

A parser makes many bytes of few (`[],[],` takes up 24 times its length), and blocks the event loop while it parses. So
values, escapes and depth are counted first, a piece at a time.
"""

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

PIECE_BYTES: Final = 1 << 16
PIECE_TOKENS: Final = 2_000
"""The counter yields after each piece. A piece takes about a millisecond."""

BREATH_SECONDS: Final = 0.0001

SMALL_BYTES: Final = 16_000
"""JSON up to this size is counted without yielding."""

_TO_TOKEN: Final = re.compile(rb'(?:[^"\[\]{},]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING: Final = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)

_QUOTE: Final = ord('"')
_OPEN: Final = frozenset(b"[{")
_CLOSED: Final = frozenset(b"]}")


class TooCostly(Exception):
    """JSON that exceeds a bound; the message names the bound."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JsonBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one kind of JSON document."""

    depth: int = 64
    """No valid document is nested half as deep; a million brackets would exhaust the parser's stack."""
    values: int = 50_000
    """Values and brackets. This many take up some 5 MB, and 20 ms to parse and check."""
    escapes: int = 2_000_000
    """Each escape makes parsing slower."""
    size: int = sys.maxsize
    """Bytes, for a reader that has not bounded them already."""
    wide_bytes: int = 4_000_000
    """The size of a document that is not pure ASCII: one such character makes a text in memory up to four times as
    long."""


BODY: Final = JsonBounds()
"""The bounds of a request body."""


async def check(data: bytes, bounds: JsonBounds = BODY) -> None:
    """Raise `TooCostly` if the JSON exceeds the bounds. Other tasks run in between."""
    for _ in counting(data, bounds):
        if len(data) > SMALL_BYTES:
            await asyncio.sleep(0)


def counting(data: bytes, bounds: JsonBounds) -> Iterator[None]:
    """The same check in pieces, for a caller that yields in its own way. Invalid JSON may pass: the parser reports the
    error."""
    whole = (0, len(data))
    _check_width(data, bounds, whole)
    yield from _count_escapes(data, bounds, whole)
    if _most_values(data) > min(bounds.depth, bounds.values):
        yield from _count_values(data, bounds)


def check_text(data: bytes, bounds: JsonBounds, place: tuple[int, int]) -> None:
    """Raise `TooCostly` if a part of the data has too much text. Values are not counted. Blocks for a while."""
    _check_width(data, bounds, place)
    for _ in _count_escapes(data, bounds, place):
        pass


def breathe() -> None:
    """Release the interpreter, for a thread with much work: the event loop runs at once and not only every 5 ms."""
    time.sleep(BREATH_SECONDS)


def _check_width(data: bytes, bounds: JsonBounds, place: tuple[int, int]) -> None:
    start, end = place
    if end - start > bounds.size:
        raise TooCostly("json_too_large", f"It has at most {bounds.size:,} bytes here.")
    if end - start > bounds.wide_bytes and not (data[start:end].isascii() and data.find(b"\\u", start, end) < 0):
        limit = bounds.wide_bytes
        raise TooCostly("json_too_large", f"JSON with other characters than ASCII has at most {limit:,} bytes here.")


def _count_escapes(data: bytes, bounds: JsonBounds, place: tuple[int, int]) -> Iterator[None]:
    (start, end), limit = place, bounds.escapes
    if end - start <= limit:
        return
    found = 0
    for piece in range(start, end, PIECE_BYTES):
        found += data.count(b"\\", piece, min(piece + PIECE_BYTES, end))
        if found > limit:
            raise TooCostly("json_too_costly", f"JSON has at most {limit:,} escaped characters here.")
        yield


def _most_values(data: bytes) -> int:
    """An upper bound on the number of tokens, which is enough for most bodies: brackets in strings are counted too."""
    if len(data) > PIECE_BYTES:
        return len(data)
    return data.count(b"[") + data.count(b"{") + data.count(b",")


def _count_values(data: bytes, bounds: JsonBounds) -> Iterator[None]:
    found = level = 0
    for start in tokens(data):
        if start < 0:
            yield
            continue
        token = data[start]
        if token in _OPEN:
            level += 1
            if level > bounds.depth:
                raise TooCostly("json_too_deep", f"JSON is nested at most {bounds.depth} levels deep here.")
        elif token in _CLOSED:
            level -= 1
            if level < 0:
                return  # Invalid JSON: the parser stops here.
            continue
        found += 1
        if found > bounds.values:
            raise TooCostly("json_too_costly", f"JSON has at most {bounds.values:,} values here.")


def tokens(data: bytes) -> Iterator[int]:
    """The offsets of brackets and commas outside of strings; -1 after each piece, where the caller should yield."""
    at, size, since, to_token = 0, len(data), 0, _TO_TOKEN.match
    while at < size:
        most = at + PIECE_BYTES if at + PIECE_BYTES < size else size
        end = to_token(data, at, most).end()  # type: ignore[union-attr]  # The pattern matches the empty string, too.
        if end < most and data[end] != _QUOTE:
            yield end
            since += 1
            at = end + 1
        elif end == at:  # A string that is longer than a piece, or has no end.
            at += 1
            quote = data.find(b'"', at)
            if data.find(b"\\", at, quote if quote >= 0 else size) < 0:
                at = quote if quote >= 0 else size
            while (end := _IN_STRING.match(data, at, at + PIECE_BYTES).end()) > at:  # type: ignore[union-attr]
                at = end
                yield -1
            at += 1
        else:
            at = end
            since = PIECE_TOKENS
        if since >= PIECE_TOKENS:
            since = 0
            yield -1
