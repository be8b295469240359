"""Frames of JSON-RPC messages on a byte stream: a line `Content-Length: N`, an empty line, N bytes of JSON.

The stream may be cut at any byte. After a framing error the stream can't be read any further, because the start of the
next frame is unknown.
"""

import json
import re
from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes, without_surrogates
from holdfast.events.tool import MAX_RESULT_JSON_BYTES

MAX_FRAME_BYTES: Final = MAX_RESULT_JSON_BYTES
"""Large enough for the result of a client's tool, or for a message with several attached images."""

MAX_MENDED_BYTES: Final = 500_000
"""Lone surrogates are repaired only in messages up to this size: the repair is much slower than decoding."""

MAX_HEADER_LINE_BYTES: Final = 1024
MAX_HEADER_LINES: Final = 16
"""Clients send one or two header lines."""

_HEADER_LINE: Final = re.compile(rb"([A-Za-z0-9-]+):[ \t]*(.*?)[ \t]*")
"""A header name has no space, so an HTTP request, which any web page can send to a local port, never parses as one."""

_DIGITS: Final = re.compile(rb"[0-9]{1,20}")


class BadFraming(Exception):
    """The stream breaks the framing rules. The message says how."""


class NotJson(Exception):
    """The body of a complete frame is not JSON."""


class FrameReader:
    """Splits a byte stream into the bodies of its frames, and buffers an incomplete frame until the rest arrives."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._length: int | None = None
        self._lines = 0
        self._body_follows = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """The next body, or None until more bytes arrive. After BadFraming the reader can't be used any more."""
        while not self._body_follows:
            line = self._next_line()
            if line is None:
                return None
            self._take_header(line)
        length = self._length or 0
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[:length])
        del self._buffer[:length]
        self._length, self._lines, self._body_follows = None, 0, False
        return body

    def _next_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", 0, MAX_HEADER_LINE_BYTES + 1)
        if end < 0:
            if len(self._buffer) > MAX_HEADER_LINE_BYTES:
                raise BadFraming(f"A header line is longer than {MAX_HEADER_LINE_BYTES} bytes.")
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _take_header(self, line: bytes) -> None:
        if not line:
            if self._length is None:
                raise BadFraming("A message must begin with a line 'Content-Length: N' and an empty line.")
            self._body_follows = True
            return
        self._lines += 1
        if self._lines > MAX_HEADER_LINES:
            raise BadFraming(f"A message has more than {MAX_HEADER_LINES} header lines.")
        header = _HEADER_LINE.fullmatch(line)
        if header is None:
            raise BadFraming("A header line is not of the form 'Name: value'.")
        if header[1].lower() == b"content-length":
            self._length = self._read_length(header[2])

    def _read_length(self, value: bytes) -> int:
        if self._length is not None:
            raise BadFraming("Content-Length is given twice.")
        if _DIGITS.fullmatch(value) is None:
            raise BadFraming("Content-Length is not a whole number of bytes.")
        if int(value) > self.max_frame_bytes:
            raise BadFraming(f"Content-Length is {int(value)}; at most {self.max_frame_bytes} bytes are accepted.")
        return int(value)


def frame(message: Any) -> bytes:
    """Encode one message as a frame. The clients' readers accept exactly one header line."""
    body = to_bytes(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def decoded(body: bytes) -> Any:
    """Decode the JSON body of a frame. Lone surrogates are replaced, as on every surface."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if len(body) > MAX_MENDED_BYTES or b"\\ud" not in body.lower():
            raise NotJson(str(error)) from None
    # JavaScript and Python write lone surrogates, which are legal JSON. Only this slower decoder accepts them.
    try:
        return without_surrogates(json.loads(body, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
