"""Encoding and decoding of events: the log returns exactly what readers saw live, at every read."""

import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import codec, upcast
from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS, Event, Unknown, type_of
from holdfast.events.ids import EventId, MessageId, Position, ToolCallId, TurnId
from holdfast.events.inbox import (
    INBOX_VERSION,
    Answer,
    Message,
    PermissionAnswer,
    QuestionAnswer,
    ToolAnswer,
    UnknownItem,
)
from holdfast.events.message import AssistantMessage, TextBlock, ToolCallBlock, UserMessage
from holdfast.events.session import TitleChanged
from holdfast.events.tool import ToolCompleted
from holdfast.session.state import Phase, next_phase
from tests.events.bodies import BODIES, ITEMS, built

HARD_TEXTS = [
    "",
    "\0",
    "a\0b",
    "\u2028 and \u2029",
    "𝄞 é ß",
    '"\\/\b\f\n\r\t',
    "\ufeff",
    "\x7f\x80\x9f",
    "\ufffe\uffff",
]


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_event_survives_the_round_trip_with_the_same_bytes(kind: type[Body], data: st.DataObject) -> None:
    live = data.draw(built(kind))
    stored = codec.encode(live)
    replayed = codec.decode(*stored)
    assert replayed == live
    assert type(replayed) is kind
    assert codec.encode(replayed) == stored


@pytest.mark.parametrize("kind", ITEMS, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_inbox_item_survives_the_round_trip_with_the_same_bytes(kind: type[Any], data: st.DataObject) -> None:
    item = data.draw(built(kind))
    stored = codec.encode_item(item)
    assert codec.decode_item(stored) == item
    assert codec.encode_item(codec.decode_item(stored)) == stored


def test_every_event_has_a_unique_type_tag() -> None:
    names = [str(kind.__struct_config__.tag) for kind in BODIES]
    assert len(set(names)) == len(names)


def test_every_event_type_is_listed() -> None:
    """An event type that is missing in the lists could be written but never read again."""
    script = (
        "import holdfast.events.codec; from holdfast.events.body import Body; "
        "print(*sorted(kind.__name__ for kind in Body.__subclasses__()))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert set(found) == {kind.__name__ for kind in BODIES} | {"Encoded", "Unknown"}


def test_type_tag_distinguishes_records_from_progress() -> None:
    assert all(codec.is_record(str(kind.__struct_config__.tag)) for kind in RECORDS)
    assert not any(codec.is_record(str(kind.__struct_config__.tag)) for kind in PROGRESS)
    assert not codec.is_record("holdfast.from_the_future")


@pytest.mark.parametrize("text", HARD_TEXTS, ids=ascii)
def test_any_text_is_kept_exactly(text: str) -> None:
    body = UserMessage(message_id=MessageId("m"), turn_id=TurnId("t"), content=text, delivery="idle")
    assert codec.decode(*codec.encode(body)) == body
    item = Message(message_id=MessageId("m"), text=text)
    assert codec.decode_item(codec.encode_item(item)) == item


def test_five_megabytes_of_tool_output_are_kept_exactly() -> None:
    text = ("line \u2028 𝄞\0\n" * 400_000)[:5_000_000]
    body = ToolCompleted(tool_call_id=ToolCallId("c"), success=True, content=text, binary=bytes(range(256)) * 4096)
    assert codec.decode(*codec.encode(body)) == body


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("𝄞\ud834", "𝄞\ufffd"),
        # A pair of surrogates is one character.
        ("\ud834\udd1e", "𝄞"),
    ],
    ids=ascii,
)
def test_a_lone_surrogate_becomes_the_replacement_character(written: str, kept: str) -> None:
    call = ToolCallBlock(tool_call_id=ToolCallId(written), name=written, arguments=written)
    body = AssistantMessage(message_id=MessageId("m"), blocks=(TextBlock(text=written), call))
    read = codec.decode(*codec.encode(body))
    clean = ToolCallBlock(tool_call_id=ToolCallId(kept), name=kept, arguments=kept)
    assert read == AssistantMessage(message_id=MessageId("m"), blocks=(TextBlock(text=kept), clean))
    assert codec.encode(read) == codec.encode(body)


def test_lone_surrogate_in_a_key_or_beside_bytes_is_replaced() -> None:
    assert codec.to_bytes({"\ud800": ["\udfff", 1, None, {"a": b"\xff"}]}) == '{"�":["�",1,null,{"a":"/w=="}]}'.encode()
    body = ToolCompleted(tool_call_id=ToolCallId("c"), success=True, content="\ud800", binary=b"\x00\xff")
    read = codec.decode(*codec.encode(body))
    assert isinstance(read, ToolCompleted)
    assert (read.content, read.binary) == ("\ufffd", b"\x00\xff")


# Data of other releases


@pytest.mark.parametrize(
    ("event_type", "version", "data"),
    [
        ("holdfast.from_the_future", 1, b'{"type":"holdfast.from_the_future","a":[1, 2],  "b":"\\u2028"}'),
        ("user.message", 9, b'{"type":"user.message","parts":[]}'),
        ("", 3, b""),
    ],
)
def test_an_event_of_a_newer_release_keeps_its_type_version_and_bytes(
    event_type: str, version: int, data: bytes
) -> None:
    read = codec.decode(event_type, version, data)
    assert isinstance(read, Unknown)
    assert codec.encode(read) == (event_type, version, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("from_the_future", b'{"kind":"from_the_future","a":[1, 2],  "b":"\\u2028"}'),
        ("answer", b'{"kind":"answer","requestId":"r","answerId":"a","content":{"type":"gesture","nod":true}}'),
        ("stop", b'{"kind":"stop","stopId":7}'),
        ("gift", b'{"kind":"gift"}'),
        ("message", b'{"kind":"message","messageId":"m"}'),
    ],
)
def test_an_inbox_item_of_a_newer_release_keeps_its_kind_and_bytes(kind: str, data: bytes) -> None:
    read = codec.decode_item(data)
    assert isinstance(read, UnknownItem)
    assert read.kind == kind
    assert codec.encode_item(read) == data


def test_the_inbox_version_is_raised_with_every_kind_of_item() -> None:
    """Older releases leave an unknown item to processes with a higher version; without a raised version a new kind of
    item would wait for ever."""
    kinds = {str(kind.__struct_config__.tag) for kind in ITEMS}
    answers = {str(kind.__struct_config__.tag) for kind in (PermissionAnswer, ToolAnswer, QuestionAnswer)}
    assert get_args(Answer.__annotations__["content"]) == (PermissionAnswer, ToolAnswer, QuestionAnswer)
    assert (INBOX_VERSION, kinds, answers) == (
        2,
        {"message", "answer", "stop", "rewind", "task", "background", "compact", "cancel_compaction"},
        {"permission", "client_tool", "question"},
    )


@pytest.mark.parametrize("phase", list(Phase))
def test_event_of_a_newer_release_changes_no_state(phase: Phase) -> None:
    body = codec.decode("holdfast.from_the_future", 2, b"{}")
    assert next_phase(phase, body) is phase
    assert Event(Position(0), EventId("e"), 1, body).at(Position(7)).position == 7


def test_old_data_is_upcast_version_by_version() -> None:
    lifts: dict[str, tuple[upcast.Lift, ...]] = {
        "thing": (
            lambda data: {"name": data["n"], "trace": "1→2"},
            lambda data: {**data, "trace": data["trace"] + " 2→3"},
        )
    }
    assert upcast.version_of("thing", lifts) == 3
    assert upcast.version_of("other", lifts) == 1
    assert upcast.lift("thing", 1, {"n": "x"}, lifts) == {"name": "x", "trace": "1→2 2→3"}
    assert upcast.lift("thing", 2, {"name": "x", "trace": ""}, lifts) == {"name": "x", "trace": " 2→3"}
    assert upcast.lift("thing", 3, {"name": "x"}, lifts) == {"name": "x"}
    assert upcast.lift("other", 1, {"a": 1}, lifts) == {"a": 1}


def old_tool_result(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "content": data["output"], "success": data["error"] is None, "error": None}


def test_an_old_event_is_read_as_the_current_type(monkeypatch: pytest.MonkeyPatch) -> None:
    name = type_of(ToolCompleted(tool_call_id=ToolCallId("c"), success=True, content=""))
    lifts = {name: (old_tool_result,)}
    monkeypatch.setattr(upcast, "LIFTS", lifts)
    monkeypatch.setattr(upcast.lift, "__defaults__", (lifts,))
    monkeypatch.setitem(codec._VERSIONS, name, 2)
    old = b'{"type":"tool.execution_complete","toolCallId":"c","output":"done","error":null,"binary":"/w=="}'
    read = codec.decode(name, 1, old)
    assert read == ToolCompleted(tool_call_id=ToolCallId("c"), success=True, content="done", binary=b"\xff")
    assert codec.encode(read)[:2] == (name, 2)
    assert codec.decode(*codec.encode(read)) == read


def test_fields_of_a_newer_release_are_ignored() -> None:
    data = b'{"type":"session.title_changed","title":"T","colour":"red"}'
    assert codec.decode("session.title_changed", 1, data) == TitleChanged(title="T")


# Malformed data


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "object"),
        (b"{}", "type"),
        (b'{"type":"session.title_changed"}', "title"),
        (b'{"type":"session.title_changed","title":1}', r"\$.title"),
        (b'{"type":"nonsense","title":"T"}', "nonsense"),
    ],
)
def test_malformed_data_raises_an_error_with_its_path(data: bytes, named: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=f"(?i){named}"):
        codec.decode("session.title_changed", 1, data)


@pytest.mark.parametrize("data", [b"", b"{", b"7", b"[]", b"{}", b'{"kind":3}'])
def test_malformed_inbox_item_raises_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        codec.decode_item(data)
