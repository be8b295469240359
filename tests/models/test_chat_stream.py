"""Decoding an answer: any split into reads, any shape of reasoning, malformed chunks, usage and cost."""

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models import streamed_answer
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.chat_stream import ChatStream
from holdfast.models.kept_reasoning import MAX_KEPT_CHARACTERS
from holdfast.models.model import (
    Chunk,
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from tests.models.answers import finish_of, joined, reasoning_of, text_of, tool_calls_of, usage_of

HOST = ModelEndpoint(host="model.test")
DONE = b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return data({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


def read(*reads: bytes) -> tuple[list[Chunk], ChatStream]:
    stream = ChatStream(HOST, new_id=lambda: "made-up")
    chunks = [chunk for part in reads for chunk in stream.feed(part)]
    if not stream.over:
        chunks += stream.end()
    return chunks, stream


def whole(*parts: bytes) -> list[Chunk]:
    chunks, stream = read(b"".join(parts))
    assert stream.failure is None
    return chunks


def failure(*parts: bytes) -> tuple[str, bool]:
    _, stream = read(b"".join(parts))
    assert stream.failure is not None
    return stream.failure.code, stream.failure.retryable


def piece(index: int | None, arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    return {"index": index, "function": {"arguments": arguments, **name}, **more}


RICH = b"".join(
    (
        b": a comment\r\n\r\n",
        delta(reasoning_content="Hm, "),
        delta(reasoning="é"),
        b"event: message\n" + delta(content="Grüße 🙂 ").replace(b"\n\n", b"\r\n\r\n"),
        delta(content="an\nalle"),
        delta(tool_calls=[piece(0, "", id="a", name="view")]),
        delta(tool_calls=[piece(0, '{"path":')]),
        delta(tool_calls=[piece(0, ' "x"}'), piece(1, "{}", id="b", name="view")]),
        delta(content=7),
        delta("tool_calls"),
        data({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
        DONE,
    )
)
BROKEN = (
    RICH.removesuffix(DONE),
    RICH[:200],
    delta(content="a") + b"data: {oops\n\n" + DONE,
    delta(content="a") + data({"error": {"message": "no", "code": 500}}) + DONE,
    delta(content="a") + delta("stop"),
    delta(content="a") + delta("stop").rstrip(),
    b"<html>\n</html>",
)


def outcome(reads: list[bytes]) -> tuple[list[Chunk], str | None]:
    chunks, stream = read(*reads)
    return joined(chunks), str(stream.failure)


@pytest.mark.parametrize("stream", [RICH, *BROKEN])
def test_answer_is_the_same_when_split_in_two_at_any_byte(stream: bytes) -> None:
    expected = outcome([stream])
    for at in range(len(stream)):
        assert outcome([stream[:at], stream[at:]]) == expected
    assert outcome([stream[at : at + 1] for at in range(len(stream))]) == expected


@settings(deadline=None)
@given(st.sampled_from([RICH, *BROKEN]), st.lists(st.integers(0, len(RICH)), max_size=30))
def test_answer_is_the_same_however_it_is_split_into_reads(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert outcome([stream[start:end] for start, end in pairwise(edges)]) == outcome([stream])


def test_consecutive_pieces_of_one_read_become_one_chunk() -> None:
    stream = ChatStream(HOST)
    chunks = stream.feed(delta(reasoning="a") + delta(reasoning="b") + delta(content="c") + delta(content="d"))
    assert chunks == [ReasoningDelta("ab"), TextDelta("cd")]
    assert stream.feed(delta(content="e")) == [TextDelta("e")]


def test_usage_and_finish_come_last_and_once() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    chunks = whole(data({**usage}), delta("stop", content="a"), delta("stop"), data(usage), DONE)
    assert chunks == [TextDelta("a"), TokenUsage(input_tokens=1, output_tokens=2), Finished("stop")]


def test_data_after_the_end_mark_is_ignored() -> None:
    assert text_of(whole(delta("stop", content="a"), DONE, delta(content="b"))) == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": "why"},
        {"reasoning_content": "why"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "why"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "why"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "xx"}], "reasoning": "why"},
        {"reasoning": "why", "reasoning_details": [{"type": "reasoning.text", "text": "why"}]},
        {"reasoning": None, "reasoning_content": "why"},
        {"reasoning": "why", "reasoning_content": "why"},
    ],
)
def test_reasoning_is_read_once_in_every_shape(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    chunks = whole(delta(**fields), delta("stop", content="a"), DONE)
    assert (reasoning_of(chunks), text_of(chunks)) == ("why", "a")
    assert caplog.records == []


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": 5},
        {"reasoning": {"text": "x"}},
        {"reasoning_content": ["x"]},
        {"reasoning_details": "x"},
        {"reasoning_details": [None, 3, {"type": "reasoning.text", "text": 4}, {"type": "other"}]},
    ],
)
def test_malformed_reasoning_is_dropped_with_one_warning(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=streamed_answer.__name__):
        chunks = whole(delta(content="a", **fields), delta(**fields), delta("stop", content="b"), DONE)
    assert (reasoning_of(chunks), text_of(chunks)) == ("", "ab")
    assert len(caplog.records) == 1


def test_the_good_entries_among_malformed_reasoning_are_kept() -> None:
    details = [
        {"type": "reasoning.text", "text": "a"},
        {"type": "reasoning.text"},
        {"type": "reasoning.text", "text": "b"},
    ]
    assert reasoning_of(whole(delta(reasoning_details=details), DONE)) == "ab"


@pytest.mark.parametrize(
    "odd",
    [
        b"data: 5\n\n",
        b"data: null\n\n",
        b"data:\n\n",
        data({"choices": "x"}),
        data({"choices": [3]}),
        data({"choices": [{"delta": []}]}),
        data({"choices": None, "usage": None, "error": None}),
        delta(content={"no": "text"}),
        delta(tool_calls="x"),
        data({"usage": "much"}),
        b"retry: 5\nid: 7\nunknown\n\n",
    ],
)
def test_malformed_chunk_never_ends_the_stream(odd: bytes) -> None:
    assert text_of(whole(delta(content="a"), odd, delta("stop", content="b"), DONE)) == "ab"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":"a\xff"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":[{"type":"text","text":"a"},{"type":"x"}]}}]}', "a"),
        (b'{"choices":[{"delta":{"refusal":"I can\'t."}}]}', "I can't."),
    ],
)
def test_text_in_unusual_encodings_is_read(raw: bytes, text: str) -> None:
    assert text_of(whole(b"data: " + raw + b"\n\n", DONE)) == text


def test_a_byte_order_mark_is_skipped() -> None:
    assert text_of(whole(b"\xef\xbb\xbf" + delta("stop", content="a"))) == "a"


def test_last_line_without_a_line_break_is_read() -> None:
    assert text_of(whole(delta(content="a"), delta("stop", content="b").rstrip())) == "ab"


@pytest.mark.parametrize(
    "deltas",
    [
        [[piece(0, "", id="a", name="f")], [piece(0, "{}")], [piece(1, "[]", id="b", name="g")]],
        [[piece(0, "{}", id="a", name="f"), piece(0, "[]", id="b", name="g")]],
        [[piece(None, "{", id="a", name="f")], [piece(None, "}")], [piece(None, "[]", id="b", name="g")]],
        [[piece(4, "{", id="a", name="f")], [piece(4, "}", id="a", name="f")], [piece(9, "[]", id="b", name="g")]],
        [[piece(0, "", id="a")], [piece(0, "{}", name="f")], [piece(1, "[]", id="b", name="g")]],
        [[piece(0, "{}", id="a", name="f", type=8)], [piece(1, "[]", id="b", name="g")]],
    ],
)
def test_tool_calls_are_separated_however_the_provider_numbers_them(deltas: list[Any]) -> None:
    chunks = whole(*(delta(tool_calls=calls) for calls in deltas), DONE)
    assert tool_calls_of(chunks) == [("a", "f", "{}"), ("b", "g", "[]")]
    assert finish_of(chunks) == "tool_calls"


def test_tool_call_gets_a_missing_id_and_object_arguments_become_text() -> None:
    chunks = whole(delta(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}]), DONE)
    assert chunks[0] == ToolCallDelta(0, '{"a": 1}', "made-up", "f")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("?", "other"),
    ],
)
def test_finish_reasons_are_mapped(reason: str, expected: str) -> None:
    assert finish_of(whole(delta(reason))) == expected


@pytest.mark.parametrize(
    ("cost", "microdollars"),
    [
        (0.0000025, 2),
        (0.0000035, 4),
        (0.1, 100_000),
        (12, 12_000_000),
        (0, 0),
        ("0.5", 500_000),
        (-1, None),
        (1e300, None),
        ("x", None),
    ],
)
def test_cost_is_rounded_to_microdollars_half_to_even(cost: Any, microdollars: int | None) -> None:
    usage = usage_of(whole(data({"choices": [], "usage": {"cost": cost}}), DONE))
    assert usage == TokenUsage(cost_microdollars=microdollars)


def test_usage_is_read_with_its_details() -> None:
    told = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    expected = TokenUsage(input_tokens=10, output_tokens=5, cache_read_tokens=8, reasoning_tokens=2)
    assert usage_of(whole(data({"choices": [], "usage": told}), DONE)) == expected
    mended = whole(data({"choices": [], "usage": {**told, "total_tokens": [], "cost": []}}), DONE)
    assert usage_of(mended) == expected


def test_stream_that_ends_early_is_cut() -> None:
    assert failure(delta(content="a")) == ("model_cut", True)
    assert failure(delta(content="a"), b'data: {"choi') == ("model_cut", True)
    assert failure(b"") == ("model_cut", True)


def test_a_response_that_is_not_json_is_garbage() -> None:
    assert failure(delta(content="a"), b"data: {oops\n\n") == ("model_garbage", True)
    assert failure(b"data: " + b"[" * 100_000 + b"\n\n") == ("model_garbage", True)
    assert failure(b"hello\nthere\n") == ("model_garbage", True)


@pytest.mark.parametrize("depth", [100, 400, 600, 900, 5_000])
def test_deep_nesting_is_read_or_is_garbage(depth: int) -> None:
    _, stream = read(b'data: {"choices": 1, "x": ' + b"[" * depth + b"]" * depth + b"}\n\n", DONE)
    assert stream.failure is None or stream.failure.code == "model_garbage"


def test_endless_event_is_refused_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_answer, "MAX_EVENT_BYTES", 100)
    assert failure(b"data: " + b"x" * 100) == ("model_garbage", True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "slow down", "code": 429}, ("model_rate_limited", True)),
        ({"message": "pay", "code": "insufficient_quota"}, ("model_rate_limited", False)),
        ({"message": "too long", "code": "context_length_exceeded"}, ("model_context_exceeded", False)),
        ({"message": "who?", "type": "authentication_error"}, ("model_unauthorized", False)),
        ({"message": "bad gateway", "code": "502"}, ("model_unavailable", True)),
        ({"message": "?", "code": "strange"}, ("model_unavailable", True)),
        ("out of memory", ("model_unavailable", True)),
        ({"details": [10**30]}, ("model_unavailable", True)),
    ],
)
def test_error_in_the_stream_maps_to_its_code(error: Any, expected: tuple[str, bool]) -> None:
    assert failure(delta(content="a"), data({"error": error}), DONE) == expected


def test_chunks_before_an_error_in_the_same_read_are_kept() -> None:
    chunks, stream = read(delta(content="a") + data({"error": "no"}))
    assert chunks == [TextDelta("a")]
    assert stream.failure is not None


def test_finish_reason_error_is_an_error() -> None:
    assert failure(delta("error", content="a"), DONE) == ("model_unavailable", True)


def test_whole_answer_is_read_like_a_streamed_one() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"role": "assistant", "content": "hi", "reasoning": "why", "tool_calls": calls}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}}
    assert ChatStream(HOST).whole(json.dumps(body).encode()) == [
        ReasoningDelta("why"),
        TextDelta("hi"),
        ToolCallDelta(0, "{}", "a", "f"),
        TokenUsage(input_tokens=1),
        Finished("tool_calls"),
    ]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b"<html>"])
def test_a_whole_answer_without_choices_is_garbage(body: bytes) -> None:
    stream = ChatStream(HOST)
    assert stream.whole(body) == []
    assert stream.failure is not None
    assert stream.failure.code == "model_garbage"


def kept(*parts: bytes) -> Any:
    """The reasoning that is kept for the provider; None if nothing is."""
    ends = [chunk for chunk in whole(*parts) if isinstance(chunk, ReasoningEnd)]
    assert len(ends) <= 1
    return json.loads(ends[0].opaque) if ends else None


def detail(kind: str, index: int | None = 0, **fields: Any) -> bytes:
    number = {} if index is None else {"index": index}
    return delta(reasoning_details=[{"type": f"reasoning.{kind}", **fields, "format": "f-v1", **number}])


CALLED = delta("tool_calls", tool_calls=[piece(0, "{}", id="a", name="view")])


def test_reasoning_details_are_kept_whole_and_in_order() -> None:
    assert kept(
        detail("text", text="I see", signature=None),
        detail("text", text=" it."),
        detail("text", signature="s=="),
        detail("encrypted", 1, data="x==", id="rs_1", extra=[1.5, None]),
        detail("summary", 2, summary="Su", id="rs_2"),
        detail("summary", 2, summary="m"),
        detail("summary", 2, summary="other", id="rs_3"),
        detail("encrypted", 1, data="y==", id="rs_4"),
        CALLED,
        DONE,
    ) == {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "I see it.", "signature": "s==", "format": "f-v1", "index": 0},
            {
                "type": "reasoning.encrypted",
                "data": "x==",
                "id": "rs_1",
                "extra": [1.5, None],
                "format": "f-v1",
                "index": 1,
            },
            {"type": "reasoning.summary", "summary": "Sum", "id": "rs_2", "format": "f-v1", "index": 2},
            {"type": "reasoning.summary", "summary": "other", "id": "rs_3", "format": "f-v1", "index": 2},
            {"type": "reasoning.encrypted", "data": "y==", "id": "rs_4", "format": "f-v1", "index": 1},
        ]
    }


def test_details_without_a_number_grow_only_at_the_end() -> None:
    parts = [detail("text", None, text=text) for text in ("a", "b")]
    found = kept(*parts, detail("encrypted", None, data="x"), detail("text", None, text="c"), DONE)
    assert [entry.get("text") or entry["data"] for entry in found["reasoning_details"]] == ["ab", "x", "c"]


def test_details_of_a_whole_answer_are_kept_as_they_are() -> None:
    entries = [{"type": "reasoning.text", "text": "a", "index": 0}, {"type": "reasoning.text", "text": "b", "index": 1}]
    stream = ChatStream(HOST)
    body = {"choices": [{"message": {"content": "c", "reasoning_details": entries}, "finish_reason": "stop"}]}
    (*_, end, _) = stream.whole(json.dumps(body).encode())
    assert isinstance(end, ReasoningEnd)
    assert json.loads(end.opaque) == {"reasoning_details": entries}


def test_reasoning_content_is_kept_with_tool_calls_only() -> None:
    thought = (delta(reasoning_content="I "), delta(reasoning_content="see."))
    assert kept(*thought, CALLED, DONE) == {"reasoning_content": "I see."}
    assert kept(*thought, delta("stop", content="a"), DONE) is None
    assert kept(delta(reasoning_content=""), CALLED, DONE) == {"reasoning_content": ""}
    assert kept(delta(reasoning="I see."), CALLED, DONE) is None


def test_ids_that_other_servers_refuse_are_noted() -> None:
    odd = delta("tool_calls", tool_calls=[piece(0, "{}", id="a" * 41, name="view")])
    assert kept(odd, DONE) == {"keeps_ids": True}


@pytest.mark.parametrize("number", ["1" + "0" * 30, "1e999", "[" * 600 + "]" * 600])
def test_unusual_values_in_details_never_raise(number: str) -> None:
    entry = b'{"type":"reasoning.encrypted","data":"x","odd":%b}' % number.encode()
    payload = b'data: {"choices":[{"delta":{"content":"a","reasoning_details":[%b]}}]}\n\n' % entry
    _, stream = read(payload, delta("stop"), DONE)
    assert stream.over


def test_endless_reasoning_is_not_kept() -> None:
    part = detail("encrypted", data="x" * 1_000_000)
    assert kept(*[part] * (MAX_KEPT_CHARACTERS // 1_000_000 + 1), delta("stop", content="a"), DONE) is None


def choice(index: int, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": finish_reason}


def test_answer_that_is_split_over_several_choices_is_merged() -> None:
    text, called = choice(0, content="Look."), choice(1, tool_calls=[piece(0, "{}", id="a", name="view")])
    other = choice(2, "tool_calls", tool_calls=[piece(0, "[]", id="b", name="list")])
    ends = [choice(0, "stop"), choice(1, "tool_calls")]
    for parts in (
        [data({"choices": [text, called, other]}), data({"choices": ends})],
        [data({"choices": [each]}) for each in (text, called, other, *ends)],
    ):
        for ending in (b"", DONE):
            chunks = whole(*parts, ending)
            assert text_of(chunks) == "Look."
            assert tool_calls_of(chunks) == [("a", "view", "{}"), ("b", "list", "[]")]
            assert finish_of(chunks) == "tool_calls"


def test_whole_answer_that_is_split_over_several_choices_is_merged() -> None:
    called = {"role": "assistant", "tool_calls": [piece(None, "{}", id="a", name="view")]}
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "Look."}, "finish_reason": "stop"},
        {"index": 1, "message": called, "finish_reason": "tool_calls"},
    ]
    chunks = ChatStream(HOST).whole(json.dumps({"choices": choices}).encode())
    assert (text_of(chunks), tool_calls_of(chunks)) == ("Look.", [("a", "view", "{}")])
    assert finish_of(chunks) == "tool_calls"


def test_answer_is_not_finished_before_each_of_its_choices_is() -> None:
    both = data({"choices": [choice(0, content="a"), choice(1, content="b")]})
    assert failure(both, data({"choices": [choice(0, "stop")]})) == ("model_cut", True)
    assert text_of(whole(both, data({"choices": [choice(0, "stop"), choice(1, "stop")]}))) == "ab"


@pytest.mark.parametrize(
    ("usage", "read_tokens", "written"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4}}, 3, 4),
        ({"prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}, 0, 0),
        ({"prompt_tokens_details": {"cached_tokens": 3, "cache_creation_tokens": 4}}, 3, 4),
        ({"cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}, 3, 4),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "cache_read_input_tokens": 3}, 3, None),
        ({"prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 9}, 3, None),
        ({"cached_tokens": 3}, 3, None),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, None, None),
    ],
)
def test_cache_figures_are_read_in_every_shape(usage: Any, read_tokens: int | None, written: int | None) -> None:
    found = usage_of(whole(data({"choices": [], "usage": usage}), DONE))
    assert found == TokenUsage(cache_read_tokens=read_tokens, cache_write_tokens=written)


@pytest.mark.parametrize(
    "spoken",
    [
        data({"type": "response.created", "response": {"status": "in_progress"}}),
        data({"object": "response", "output": []}),
        data({"type": "message_start", "message": {}}),
    ],
)
def test_answer_of_another_api_is_refused(spoken: bytes) -> None:
    assert failure(spoken) == ("model_refused", False)
