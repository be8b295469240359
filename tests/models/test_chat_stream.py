"""Decoding an answer: any split into reads, any shape of reasoning, malformed chunks, usage and cost."""

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import streamed_answer
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.chat_stream import ChatStream
from holdfast.models.model import Chunk, Finished, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
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
