"""JSON-RPC messages on a stream of bytes: `Content-Length: N`, an empty line, N bytes of JSON. Bytes in, frames out.

Bytes may come cut anywhere. A stream that breaks a rule can't be followed any further: where the next frame would
begin is unknown.
"""

import json
import re
from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes, without_surrogates
from holdfast.events.tool import MAX_RESULT_JSON_BYTES

MAX_FRAME_BYTES: Final = MAX_RESULT_JSON_BYTES
"""The result of a client's tool fits, and so does a message with several attached images."""

MAX_MENDED_BYTES: Final = 500_000
"""Text with half a character in it is mended in messages of up to this size: it takes much longer than reading."""

MAX_HEADER_LINE_BYTES: Final = 1024
MAX_HEADER_LINES: Final = 16
"""Clients send one or two header lines."""

_HEADER_LINE: Final = re.compile(rb"([A-Za-z0-9-]+):[ \t]*(.*?)[ \t]*")
"""No name may hold a space: so no HTTP request, which any web page can send to a port here, ever passes for a frame."""

_DIGITS: Final = re.compile(rb"[0-9]{1,20}")


class BadFraming(Exception):
    """The stream is not one of frames. The message says what is wrong with it."""


class NotJson(Exception):
    """A frame came whole, and its body is not JSON."""


class FrameReader:
    """Cuts a stream into the bodies of its frames. What follows the last whole frame is kept for later."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._length: int | None = None
        self._lines = 0
        self._body_follows = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """The next body, or None until more bytes come. After BadFraming there is nothing more to ask for."""
        while not self._body_follows:
            line = self._next_line()
            if line is None:
                return None
            self._take_header(line)
        length = self._length or 0
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as held:
            body = bytes(held[:length])
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
            raise BadFraming(f"Content-Length is {int(value)}; at most {self.max_frame_bytes} bytes are accepted here.")
        return int(value)


def frame(message: Any) -> bytes:
    """One message as it goes over the wire. The clients' readers accept exactly one header line."""
    body = to_bytes(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def decoded(body: bytes) -> Any:
    """The JSON value in a frame. Text with half a character in it is mended, as everywhere."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if len(body) > MAX_MENDED_BYTES or b"\\ud" not in body.lower():
            raise NotJson(str(error)) from None
    # A lone surrogate: legal JSON, which JavaScript and Python write, and which only this slower reader takes.
    try:
        return without_surrogates(json.loads(body, parse_constant=_refused))
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
