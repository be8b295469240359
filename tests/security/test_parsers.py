"""Parsers that outsiders reach, given anything: they take it or refuse it in their own words, and nothing else."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.events.ids import MessageId, Position, SessionId
from holdfast.server import json_bounds
from holdfast.server.copilot.frames import BadFraming, FrameReader, NotJson, decoded, frame
from holdfast.server.cursor_text import format_cursor, parse_cursor
from holdfast.server.errors import Invalid
from holdfast.server.json_bounds import JsonBounds, TooCostly, counting, tokens
from holdfast.server.operations.new_log import NewLog
from holdfast.server.operations.transfers import ImportBounds, _read
from holdfast.store.store import Cursor
from tests.events.bodies import any_body
from tests.security.test_bombs import INFO, START, document, logged, places

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)
BROKEN = st.lists(
    st.sampled_from([b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b'\\"', b"\\u", b"0", b"x", b" "])
    | st.binary(max_size=3),
    max_size=60,
).map(b"".join)


# JSON


@given(JSON.map(msgspec.json.encode) | BROKEN)
def test_tokens_are_found_in_json_and_every_other_search_ends(data: bytes) -> None:
    found = [at for at in tokens(data) if at >= 0]
    assert found == sorted(set(found))
    assert all(data[at] in b"[]{}," for at in found)
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert found == places(data)


@given(JSON, st.integers(1, 8), st.integers(1, 40))
def test_json_is_refused_just_when_it_is_too_deep_or_has_too_much_in_it(value: Any, depth: int, values: int) -> None:
    data = msgspec.json.encode(value)
    brackets = [data[at : at + 1] for at in places(data)]
    levels = [
        sum(1 if each in b"[{" else -1 for each in brackets[: end + 1] if each in b"[]{}")
        for end in range(len(brackets))
    ]
    too_much = max(levels, default=0) > depth or sum(each not in b"]}" for each in brackets) > values
    try:
        for _ in counting(data, JsonBounds(depth=depth, values=values)):
            pass
    except TooCostly:
        assert too_much
    else:
        assert not too_much


# Imports

EVENT = any_body().map(lambda body: {"version": 1, "time": 1, **_typed(body)})


def _typed(body: Any) -> dict[str, Any]:
    data = msgspec.json.decode(msgspec.json.encode(body))
    return {"type": data["type"], "data": data}


@given(st.lists(EVENT | st.just(INFO), max_size=8), BROKEN, st.integers(0, 10_000), st.booleans())
@example([logged("holdfast.truncated", kept=0)], b"", 0, False)
def test_a_document_becomes_a_log_that_can_be_folded_or_is_refused(
    events: list[dict[str, Any]], junk: bytes, at: int, is_broken: bool
) -> None:
    data = document([START, *events])
    if is_broken:
        data = data[: at % len(data)] + junk + data[at % len(data) :]
    with contextlib.suppress(Invalid):
        _, log, _ = _read(data, SessionId("new"), ImportBounds(size=1_000_000, events=100, each=json_bounds.BODY))
        _check(log)


def _check(log: NewLog) -> None:
    assert log.state.turn is None, "it is idle"
    assert log.state.head == len(log.events())


# Cursors


@given(
    st.integers(0, 10**14),
    st.none() | st.text("abc-/0", min_size=1, max_size=20),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_a_cursor_that_was_given_out_is_read_back(position: int, message: str | None, block: int, offset: int) -> None:
    if message is None:
        given_out = Cursor(Position(position))
    else:
        given_out = Cursor(Position(position), MessageId(message.replace("/", "_")), block, offset)
    assert parse_cursor(format_cursor(given_out)) == given_out


@given(
    st.text(max_size=250)
    | st.lists(st.sampled_from(["/", "1", "-1", "٣", "1e5", " ", "m", "²"]), max_size=9).map("".join)
)
def test_any_other_cursor_is_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert 0 <= parse_cursor(text).position < 10**15


# Frames of the Copilot protocol


@given(st.lists(JSON, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=30), BROKEN)
def test_frames_come_whole_however_they_are_cut_and_junk_after_them_is_refused(
    messages: list[Any], cuts: list[int], junk: bytes
) -> None:
    sent = b"".join(frame(message) for message in messages) + junk
    reader, found, at = FrameReader(max_frame_bytes=1_000), [], 0
    try:
        for number in range(len(sent)):
            size = cuts[number % len(cuts)]
            reader.feed(sent[at : at + size])
            at += size
            while (body := reader.next()) is not None:
                found.append(body)
            if at >= len(sent):
                break
    except BadFraming:
        assert junk or any(len(frame(message)) > 1_000 for message in messages)
    for body, message in zip(found, messages, strict=False):
        assert decoded(body) == message


@given(BROKEN | st.text(max_size=30).map(lambda text: b'"' + text.encode("utf-8", "surrogatepass") + b'"'))
@example(b'"\\ud800"')
def test_the_body_of_a_frame_is_json_or_refused(body: bytes) -> None:
    try:
        msgspec.json.encode(decoded(body))
    except NotJson:
        pass


@pytest.mark.parametrize("digits", [21, 1_000])
def test_a_length_of_many_digits_is_not_even_read(digits: int) -> None:
    reader = FrameReader()
    reader.feed(b"Content-Length: " + b"9" * digits + b"\r\n\r\n")
    with pytest.raises(BadFraming):
        reader.next()
