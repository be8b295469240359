"""Decoding and encoding frames, without a connection."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.copilot.frames import (
    MAX_FRAME_BYTES,
    MAX_HEADER_LINE_BYTES,
    MAX_HEADER_LINES,
    BadFraming,
    FrameReader,
    NotJson,
    decoded,
    frame,
)

BODIES = [b'{"a":1}', b"", '{"b":"äöü 漢字"}'.encode(), b"\r\n\r\nContent-Length: 3\r\n\r\nabc"]
STREAM = b"".join(b"Content-Length: %d\r\n\r\n" % len(body) + body for body in BODIES)


def frames(*pieces: bytes) -> list[bytes]:
    reader = FrameReader()
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (body := reader.next()) is not None:
            found.append(body)
    return found


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_gives_the_same_frames_wherever_it_is_cut(cut: int) -> None:
    assert frames(STREAM[:cut], STREAM[cut:]) == BODIES


def test_a_stream_may_come_byte_by_byte() -> None:
    assert frames(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == BODIES


def test_frame_is_complete_with_its_last_byte() -> None:
    reader = FrameReader()
    reader.feed(b"Content-Length: 2\r\n\r\n{")
    assert reader.next() is None
    reader.feed(b"}")
    assert reader.next() == b"{}"
    assert reader.next() is None


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
        b"Content-Type: application/json\r\ncontent-length:2\r\n\r\n",
        b"CONTENT-LENGTH:  2  \r\n\r\n",
        b"Content-Length: 2\n\n",
    ],
)
def test_headers_are_read_as_other_clients_write_them(headers: bytes) -> None:
    assert frames(headers + b"{}" + headers + b"[]") == [b"{}", b"[]"]


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"\r\n{}", "must begin with a line 'Content-Length: N'"),
        (b"Content-Type: application/json\r\n\r\n{}", "must begin with a line 'Content-Length: N'"),
        (b"Content-Length: -1\r\n\r\n", "not a whole number"),
        (b"Content-Length: 1.5\r\n\r\n", "not a whole number"),
        (b"Content-Length: \r\n\r\n", "not a whole number"),
        (b"Content-Length: 0x10\r\n\r\n", "not a whole number"),
        (b"Content-Length: 1_0\r\n\r\n", "not a whole number"),
        ("Content-Length: ٣\r\n\r\n".encode(), "not a whole number"),
        (b"Content-Length: " + b"9" * 500 + b"\r\n\r\n", "not a whole number"),
        (b"Content-Length: %d\r\n" % (MAX_FRAME_BYTES + 1), f"at most {MAX_FRAME_BYTES} bytes"),
        (b"Content-Length: 6400000000\r\n", f"at most {MAX_FRAME_BYTES} bytes"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "given twice"),
        (b"{}\r\n", "'Name: value'"),
        (b"\x00\x01\x02\xff\r\n", "'Name: value'"),
        (b"x" * (MAX_HEADER_LINE_BYTES + 1), "longer than 1024 bytes"),
        (b"X: " + b"y" * MAX_HEADER_LINE_BYTES + b"\r\n", "longer than 1024 bytes"),
        (b"X: y\r\n" * (MAX_HEADER_LINES + 1), "more than 16 header lines"),
    ],
)
def test_bad_framing_is_refused_with_its_reason(stream: bytes, why: str) -> None:
    with pytest.raises(BadFraming) as refused:
        frames(stream)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "first_line", [b"POST / HTTP/1.1", b"POST http://localhost:1/ HTTP/1.1", b"GET / HTTP/1.1", b"OPTIONS * HTTP/1.1"]
)
def test_a_web_page_can_not_send_a_frame(first_line: bytes) -> None:
    """Any web page can make the browser post arbitrary bytes to a local port."""
    with pytest.raises(BadFraming):
        frames(first_line + b"\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")


def test_a_frame_as_large_as_allowed_is_read_and_one_byte_more_is_not() -> None:
    reader = FrameReader(max_frame_bytes=10)
    reader.feed(b"Content-Length: 10\r\n\r\n0123456789Content-Length: 11\r\n\r\n")
    assert reader.next() == b"0123456789"
    with pytest.raises(BadFraming):
        reader.next()


def test_whole_frames_before_a_bad_one_are_still_read() -> None:
    reader = FrameReader()
    reader.feed(b"Content-Length: 2\r\n\r\n{}garbage\r\n")
    assert reader.next() == b"{}"
    with pytest.raises(BadFraming):
        reader.next()


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([STREAM, b"Content-Length: 5\r\n\r\n"])), max_size=8))
def test_any_bytes_yield_frames_or_are_refused(pieces: list[bytes]) -> None:
    try:
        frames(*pieces)
    except BadFraming:
        pass


def test_message_is_written_with_one_header_line_in_utf_8() -> None:
    assert frame({"a": "ä"}) == b'Content-Length: 10\r\n\r\n{"a":"\xc3\xa4"}'


def test_lone_surrogate_is_replaced_on_read_and_on_write() -> None:
    """JavaScript and Python can write a lone surrogate, which no UTF-8 decoder accepts."""
    for written in (json.dumps({"a": "x\ud800", "b": ["\udc00"]}), '{"a":"x\\uD800","b":["\\uDC00"]}'):
        assert decoded(written.encode()) == {"a": "x\ufffd", "b": ["\ufffd"]}
    assert frames(frame({"a": "x\ud800"})) == ['{"a":"x\ufffd"}'.encode()]


def test_surrogate_pair_in_escapes_is_kept() -> None:
    assert decoded(b'["\\ud83d\\ude00", "\\ud800"]') == ["😀", "\ufffd"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a":NaN}',
        b'{"a":NaN,"b":"\\ud800"}',
        b'"\\ud800" and more',
        b"[" * 100_000,
        b'["\\ud800",' + b"[" * 100_000,
    ],
    ids=range(8),
)
def test_body_that_is_not_json_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(NotJson):
        decoded(body)
