"""Bounds on JSON from outside: the time and the memory that reading it takes are known before it is read.

A parser makes many bytes of few (`[],[],` takes up 24 times its length), and reads all of it in one go, in which nobody
else gets a turn. So values, escapes and depth are counted first, a piece at a time.
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
"""Between two of these somebody else gets a turn. Each takes about a millisecond."""

BREATH_SECONDS: Final = 0.0001

SMALL_BYTES: Final = 16_000
"""So much is counted without letting anybody in between."""

_TO_TOKEN: Final = re.compile(rb'(?:[^"\[\]{},]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING: Final = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.DOTALL)

_QUOTE: Final = ord('"')
_OPEN: Final = frozenset(b"[{")
_CLOSED: Final = frozenset(b"]}")


class TooCostly(Exception):
    """JSON that is not read; the message says which bound it exceeds."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JsonBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The most that JSON may hold for one reader."""

    depth: int = 64
    """No value of ours is nested half as deep; a parser that is given a million brackets runs out of stack."""
    values: int = 50_000
    """Values and brackets. As many take up some 5 MB, and 20 ms to read and check."""
    escapes: int = 2_000_000
    """Each makes reading a text slower."""
    size: int = sys.maxsize
    """Bytes, where they are not bounded before."""
    wide_bytes: int = 4_000_000
    """The whole of it, where it holds anything but ASCII: one such character makes a text in memory up to four times as
    long as it was."""


BODY: Final = JsonBounds()
"""For what a surface reads in one go."""


async def check(data: bytes, bounds: JsonBounds = BODY) -> None:
    """Raise `TooCostly` if the JSON exceeds the bounds. Others get turns meanwhile."""
    for _ in counting(data, bounds):
        if len(data) > SMALL_BYTES:
            await asyncio.sleep(0)


def counting(data: bytes, bounds: JsonBounds) -> Iterator[None]:
    """The same in pieces, for who has another way to let others in between. Data that is no JSON passes, or not: its
    parser says what is wrong with it."""
    whole = (0, len(data))
    _check_width(data, bounds, whole)
    yield from _count_escapes(data, bounds, whole)
    if _most_values(data) > min(bounds.depth, bounds.values):
        yield from _count_values(data, bounds)


def check_text(data: bytes, bounds: JsonBounds, place: tuple[int, int]) -> None:
    """Raise `TooCostly` if a part of the data has too much text, whatever its values are. It takes a while."""
    _check_width(data, bounds, place)
    for _ in _count_escapes(data, bounds, place):
        pass


def breathe() -> None:
    """For a thread that is at work for long: the event loop gets the interpreter at once and not only every 5 ms."""
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
    """As many tokens as there can be, text included: for most bodies that is enough."""
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
                return  # It is no JSON, and a parser stops here.
            continue
        found += 1
        if found > bounds.values:
            raise TooCostly("json_too_costly", f"JSON has at most {bounds.values:,} values here.")


def tokens(data: bytes) -> Iterator[int]:
    """The places of brackets and commas outside of strings; -1 now and then, when others should get a turn."""
    at, size, since, to_token = 0, len(data), 0, _TO_TOKEN.match
    while at < size:
        most = at + PIECE_BYTES if at + PIECE_BYTES < size else size
        end = to_token(data, at, most).end()  # type: ignore[union-attr]  # It matches nothing, too.
        if end < most and data[end] != _QUOTE:
            yield end
            since += 1
            at = end + 1
        elif end == at:  # A string that is longer than a piece, or never ends.
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
