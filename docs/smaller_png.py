"""A screenshot with 256 colours instead of millions, which is less than half as large: text on paper has no more."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256

Colour = tuple[int, ...]


def smaller(png: bytes) -> bytes:
    """The same picture with a palette. It must be what Chromium writes: eight bits, RGB, not interlaced."""
    chunks = list(_chunks(png))
    header = next(data for kind, data in chunks if kind == b"IHDR")
    width, height, *rest = struct.unpack(">IIBBBBB", header)
    if rest != [8, 2, 0, 0, 0]:
        return png
    rows = list(_rows(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), width * 3))
    pixels = [list(zip(row[0::3], row[1::3], row[2::3], strict=True)) for row in rows]
    counted = Counter(pixel for row in pixels for pixel in row)
    palette = [colour for colour, _ in counted.most_common(COLOURS)]
    index = {colour: _nearest(colour, palette) for colour in counted}
    drawn = b"".join(b"\0" + bytes(index[pixel] for pixel in row) for row in pixels)
    return SIGNATURE + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(value for colour in palette for value in colour)),
            (b"IDAT", zlib.compress(drawn, 9)),
            (b"IEND", b""),
        )
    )


def _nearest(colour: Colour, palette: Sequence[Colour]) -> int:
    distances = (sum((a - b) ** 2 for a, b in zip(colour, found, strict=True)) for found in palette)
    return min(enumerate(distances), key=lambda found: found[1])[0]


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _rows(raw: bytes, length: int) -> Iterator[bytearray]:
    """The lines of the picture, each without what was predicted of it."""
    above = bytearray(length)
    for start in range(0, len(raw), length + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + length])
        for at in range(length):
            left = row[at - 3] if at >= 3 else 0
            corner = above[at - 3] if at >= 3 else 0
            row[at] = (row[at] + _predicted(kind, left, above[at], corner)) & 255
        yield row
        above = row


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    match kind:
        case 0:
            return 0
        case 1:
            return left
        case 2:
            return up
        case 3:
            return (left + up) // 2
        case _:
            guess = left + up - corner
            return min((left, up, corner), key=lambda found: abs(guess - found))
