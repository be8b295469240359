"""Hints survive the round trip over the wire, and foreign messages are refused whole."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.body import Body
from holdfast.events.event import Event, Unknown
from holdfast.events.ids import EventId, Position
from holdfast.live.live import Advanced, Changed, Hint, Lost, Progress, WaitStatus
from holdfast.live.wire import (
    MAX_MESSAGE_BYTES,
    VERSION,
    LostAll,
    NotUnderstood,
    SessionHints,
    WakeUps,
    decode,
    encode_hints,
    encode_lost_all,
    encode_wake_ups,
    hints_of,
)
from tests.events.bodies import BODIES, built
from tests.live.hint_streams import KEY, Life, lives


def round_trip(hints: list[Hint]) -> list[Hint]:
    sender, message = decode(encode_hints("me", KEY, hints))
    assert sender == "me"
    assert isinstance(message, SessionHints)
    assert message.key == KEY
    return hints_of(message)


@given(lives)
def test_hints_survive_the_round_trip(steps: list[tuple[str, list[object]]]) -> None:
    hints = Life().lead(steps)
    hints += [Lost(), Changed(), Changed(tail=3, queue=True), Changed(promoted=True)]
    assert round_trip(hints) == hints


@given(st.one_of([built(kind) for kind in BODIES]))
def test_every_event_survives_the_round_trip(body: Body) -> None:
    events = (Event(Position(7), EventId("e"), 5, body),)
    assert round_trip([Advanced(events)]) == [Advanced(events)]


def test_event_of_a_newer_release_keeps_its_position() -> None:
    unknown = Unknown(original_type="holdfast.dreamt", original_version=4, data=msgspec.Raw(b'{"of":"sheep"}'))
    (hint,) = round_trip([Advanced((Event(Position(7), EventId("e"), 5, unknown),))])
    assert isinstance(hint, Advanced)
    assert isinstance(hint.events[0].body, Unknown)
    assert bytes(hint.events[0].body.data) == b'{"of":"sheep"}'


def test_wake_ups_survive_the_round_trip() -> None:
    assert decode(encode_wake_ups("me", [(KEY, 3), (KEY, None)])) == ("me", WakeUps(((KEY, 3), (KEY, None))))
    assert decode(encode_lost_all("me")) == ("me", LostAll())


def refused(data: bytes) -> str:
    with pytest.raises(NotUnderstood) as error:
        taken(data)
    return error.value.why


def taken(data: bytes) -> None:
    _, message = decode(data)
    if isinstance(message, SessionHints):
        hints_of(message)


def altered(body: object, *, version: int = VERSION) -> bytes:
    return msgspec.msgpack.encode((version, "me", body))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    assert refused(data) in ("not ours", "malformed") or refused(data).startswith("of version")


@given(st.data())
def test_damaged_message_is_refused_or_decodes_as_a_message(data: st.DataObject) -> None:
    whole = bytearray(encode_hints("me", KEY, Life().lead([("grow", [(True, "text", "ab")]), ("record", [])])))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NotUnderstood):
        taken(bytes(whole))


def test_message_of_a_newer_version_is_refused() -> None:
    assert "version 2" in refused(altered({"anything": [1, 2, 3]}, version=2))


def test_hints_that_would_mislead_a_reader_are_refused() -> None:
    key = ["me", "s"]
    event = ["e", 1, "session.title_changed", 1, b'{"title": "T"}']
    assert refused(altered([1, key, [[1, 1, [0, 0], []]]])) == "malformed", "growth without a delta"
    assert refused(altered([1, key, [[2, []]]])) == "malformed", "no events"
    assert refused(altered([1, key, [[2, [[1, *event], [3, *event]]]]])) == "malformed", "a gap between events"
    assert refused(altered([1, key, [[2, [[1, *event[:-1], b"{"]]]]])) == "malformed", "an event that does not decode"


def test_too_long_message_is_refused_undecoded() -> None:
    assert refused(b"\x00" * (MAX_MESSAGE_BYTES + 1)) == "too long to be ours"


def test_tool_progress_survives_the_round_trip() -> None:
    hint = Progress(tool_call_id="c", text="50 %\x00\u2028")  # type: ignore[arg-type]
    assert round_trip([hint]) == [hint]


def test_status_of_a_wait_survives_the_round_trip() -> None:
    hint = WaitStatus(awaits="retry", seconds=30, since=5, attempt=2, reason="model_unavailable", until=50)
    assert round_trip([hint]) == [hint]
