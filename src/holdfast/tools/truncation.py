"""Shortens long output: keeps the beginning and the end, and says in between where the whole is. Pure."""

from collections.abc import Callable
from typing import Final

import msgspec

MARGIN_BYTES: Final = 4096
"""Bytes read beyond the kept part, so that a secret across the cut is recognised."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an output is shown."""

    whole_bytes: int
    whole_lines: int
    """Longer output is cut."""
    head_bytes: int
    head_lines: int
    tail_bytes: int
    tail_lines: int

    def holds(self, text: str) -> bool:
        return len(text.encode()) <= self.whole_bytes and lines_in(text) <= self.whole_lines


STREAM: Final = Room(
    whole_bytes=64 * 1024,
    whole_lines=2_000,
    head_bytes=32 * 1024,
    head_lines=500,
    tail_bytes=8 * 1024,
    tail_lines=100,
)
"""The room for each of a command's two outputs."""


def lines_in(text: str) -> int:
    """Counts lines: only a line feed ends a line, and text after the last one is a line as well."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def cut(head: str, tail: str, size: int, room: Room, file: str) -> str:
    """Joins the beginning of `head` and the end of `tail`, parts of an output of `size` bytes."""
    first, last = _first(head, room), _last(tail, room)
    gone = max(0, size - len(first.encode()) - len(last.encode()))
    return f"{first}\n[… about {gone:,} bytes are left out here; all that the command wrote is in {file} …]\n{last}"


def _first(text: str, room: Room) -> str:
    kept = text.encode()[: room.head_bytes].decode("utf-8", "ignore")
    return "\n".join(kept.split("\n")[: room.head_lines])


def _last(text: str, room: Room) -> str:
    kept = text.encode()[-room.tail_bytes :].decode("utf-8", "ignore")
    ending = "\n" if kept.endswith("\n") else ""
    return "\n".join(kept.removesuffix("\n").split("\n")[-room.tail_lines :]) + ending


def decoded(data: bytes, clean: Callable[[str], str]) -> str:
    """Decodes bytes for display: replaces invalid characters, and removes secrets with `clean`."""
    return clean(data.decode("utf-8", "replace"))


def cut_start(data: bytes) -> bytes:
    """Drops the rest of a character whose beginning is missing."""
    nowhere = len(data) if len(data) < 4 else 0
    return data[next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), nowhere) :]


def cut_end(data: bytes) -> bytes:
    """Drops the beginning of a character whose rest is missing."""
    for at in range(len(data) - 1, max(-1, len(data) - 4), -1):
        if data[at] & 0xC0 == 0xC0:
            length = 2 if data[at] < 0xE0 else 3 if data[at] < 0xF0 else 4
            return data[:at] if at + length > len(data) else data
        if data[at] < 0x80:
            break
    return data
