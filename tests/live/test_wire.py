"""What goes over the wire comes back as it was, and what is not ours is refused whole."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.body import Body
from holdfast.events.event import Event, Unknown
from holdfast.events.ids import EventId, Position
from holdfast.live.live import Advanced, Changed, Hint, Lost, Progress
from holdfast.live.wire import (
    MAX_MESSAGE_BYTES,
    VERSION,
    LostAll,
    NotUnderstood,
    Told,
    Woken,
    decode,
    encode_lost_all,
    encode_told,
    encode_woken,
    hints_of,
)
from tests.events.bodies import BODIES, built
from tests.live.hinting import KEY, Life, lives


def there_and_back(hints: list[Hint]) -> list[Hint]:
    sender, told = decode(encode_told("me", KEY, hints))
    assert sender == "me"
    assert isinstance(told, Told)
    assert told.key == KEY
    return hints_of(told)


@given(lives)
def test_hints_arrive_as_they_were(steps: list[tuple[str, list[object]]]) -> None:
    hints = Life().lead(steps)
    hints += [Lost(), Changed(), Changed(tail=3, queue=True), Changed(promoted=True)]
    assert there_and_back(hints) == hints


@given(st.one_of([built(kind) for kind in BODIES]))
def test_every_event_arrives_as_it_was(body: Body) -> None:
    events = (Event(Position(7), EventId("e"), 5, body),)
    assert there_and_back([Advanced(events)]) == [Advanced(events)]


def test_an_event_of_a_release_to_come_keeps_its_place() -> None:
    unknown = Unknown(original_type="holdfast.dreamt", original_version=4, data=msgspec.Raw(b'{"of":"sheep"}'))
    (hint,) = there_and_back([Advanced((Event(Position(7), EventId("e"), 5, unknown),))])
    assert isinstance(hint, Advanced)
    assert isinstance(hint.events[0].body, Unknown)
    assert bytes(hint.events[0].body.data) == b'{"of":"sheep"}'


def test_wake_ups_arrive_as_they_were() -> None:
    assert decode(encode_woken("me", [(KEY, 3), (KEY, None)])) == ("me", Woken(((KEY, 3), (KEY, None))))
    assert decode(encode_lost_all("me")) == ("me", LostAll())


def refused(data: bytes) -> str:
    with pytest.raises(NotUnderstood) as error:
        taken(data)
    return error.value.why


def taken(data: bytes) -> None:
    _, message = decode(data)
    if isinstance(message, Told):
        hints_of(message)


def altered(body: object, *, version: int = VERSION) -> bytes:
    return msgspec.msgpack.encode((version, "me", body))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    assert refused(data) in ("not ours", "malformed") or refused(data).startswith("of version")


@given(st.data())
def test_a_message_that_was_damaged_is_refused_or_still_a_message(data: st.DataObject) -> None:
    whole = bytearray(encode_told("me", KEY, Life().lead([("grow", [(True, "text", "ab")]), ("record", [])])))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NotUnderstood):
        taken(bytes(whole))


def test_a_message_of_a_release_to_come_is_refused_by_its_version() -> None:
    assert "version 2" in refused(altered({"anything": [1, 2, 3]}, version=2))


def test_hints_that_would_lead_a_reader_astray_are_refused() -> None:
    key = ["me", "s"]
    event = ["e", 1, "session.title_changed", 1, b'{"title": "T"}']
    assert refused(altered([1, key, [[1, 1, [0, 0], []]]])) == "malformed", "text without text"
    assert refused(altered([1, key, [[2, []]]])) == "malformed", "events without an event"
    assert refused(altered([1, key, [[2, [[1, *event], [3, *event]]]]])) == "malformed", "a gap between events"
    assert refused(altered([1, key, [[2, [[1, *event[:-1], b"{"]]]]])) == "malformed", "an event that is none"


def test_what_is_too_long_to_be_ours_is_not_looked_at() -> None:
    assert refused(b"\x00" * (MAX_MESSAGE_BYTES + 1)) == "too long to be ours"


def test_progress_of_a_tool_is_kept_word_for_word() -> None:
    hint = Progress(tool_call_id="c", text="50 %\x00\u2028")  # type: ignore[arg-type]
    assert there_and_back([hint]) == [hint]
