"""Parses a stream of server-sent events, piece by piece. Pure."""

from typing import Final, NamedTuple

MAX_FRAME_BYTES: Final = 97_000_000
"""The largest event carries a tool result, and JSON may need six bytes for each of its bytes; logs of earlier releases
have results of up to 16 MB. No Holdfast server sends a larger frame."""


class Frame(NamedTuple):
    kind: str
    data: bytes
    cursor: str | None
    """The cursor to reconnect with; None for a frame that has no position in the log."""


class FrameTooLarge(Exception):
    """The frame is larger than any that a Holdfast server sends."""


class Frames:
    """Takes pieces of any size, and returns each frame once it is complete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        looked_at = max(0, len(self._rest) - 1)
        self._rest += piece
        end = self._rest.rfind(b"\n\n", looked_at)
        whole = bytes(self._rest[:end]).split(b"\n\n") if end >= 0 else []
        del self._rest[: end + 2 if end >= 0 else 0]
        if len(self._rest) > MAX_FRAME_BYTES:
            raise FrameTooLarge
        return [frame for block in whole if (frame := _frame(block)) is not None]


def _frame(block: bytes) -> Frame | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, separator, value = line.partition(b":")
        if name and separator:
            fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None  # A comment, or a retry interval.
    cursor = fields.get(b"id")
    kind = fields.get(b"event", b"message").decode(errors="replace")
    return Frame(kind, fields[b"data"], cursor.decode(errors="replace") if cursor else None)
