"""A stream of server-sent events, cut into events as its bytes come. Pure."""

from typing import Final, NamedTuple

MAX_FRAME_BYTES: Final = 97_000_000
"""No event is larger than one with the result of a tool, of which JSON may write each byte as six; logs of earlier
releases have results of up to 16 MB. A longer frame is none of a server of ours."""


class Frame(NamedTuple):
    kind: str
    data: bytes
    cursor: str | None
    """What to come back with; None: this one has no place in the log."""


class FrameTooLarge(Exception):
    """Nothing that a server of ours would send."""


class Frames:
    """Takes pieces of any size; gives each frame once it is whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Frame]:
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
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
        return None  # A comment, or how long to wait before coming back.
    cursor = fields.get(b"id")
    return Frame(fields.get(b"event", b"message").decode(), fields[b"data"], cursor.decode() if cursor else None)
