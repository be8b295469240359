"""Decoding an answer of OpenAI's Responses: any split into reads, every kind of item, its end, malformed events."""

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import streamed_answer
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.kept_reasoning import MAX_KEPT_CHARACTERS
from holdfast.models.model import (
    Chunk,
    Finished,
    ModelError,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from holdfast.models.responses_stream import ResponsesStream
from tests.models.answers import finish_of, joined, reasoning_of, text_of, tool_calls_of, usage_of

HOST = ModelEndpoint(host="model.test", path="/responses")

THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "First"}, {"type": "summary_text", "text": "then é"}],
    "encrypted_content": "gAAA==",
}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_a",
    "name": "view",
    "arguments": '{"path": "x"}',
}
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 39,
}


def message(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": list(parts), **more}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def added(index: int, item: dict[str, Any], **changes: Any) -> bytes:
    empty = {key: [] if isinstance(value, list) else value for key, value in item.items()}
    return event("response.output_item.added", output_index=index, item={**empty, **changes})


def done(index: int, item: dict[str, Any]) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def text(index: int, delta: str, part: int = 0) -> bytes:
    return event("response.output_text.delta", output_index=index, content_index=part, delta=delta)


def summary(index: int, delta: str, part: int = 0) -> bytes:
    where = {"output_index": index, "summary_index": part}
    opened = event("response.reasoning_summary_part.added", **where, part={"type": "summary_text", "text": ""})
    return opened + event("response.reasoning_summary_text.delta", **where, delta=delta)


def arguments(index: int, delta: str) -> bytes:
    return event("response.function_call_arguments.delta", output_index=index, item_id="fc_1", delta=delta)


def ended(kind: str = "completed", **fields: Any) -> bytes:
    response = {"id": "resp_1", "object": "response", "status": kind, "output": [], "error": None, **fields}
    return event(f"response.{kind}", response=response)


def read(*reads: bytes) -> tuple[list[Chunk], ResponsesStream]:
    stream = ResponsesStream(HOST)
    chunks = [chunk for part in reads for chunk in stream.feed(part)]
    if not stream.over:
        chunks += stream.end()
    return chunks, stream


def answer(*parts: bytes) -> list[Chunk]:
    chunks, stream = read(b"".join(parts))
    assert stream.failure is None
    return chunks


def failure(*parts: bytes) -> ModelError:
    _, stream = read(b"".join(parts))
    assert stream.failure is not None
    return stream.failure


RICH = b"".join(
    (
        event("response.created", response={"id": "resp_1", "status": "in_progress", "output": []}),
        added(0, THOUGHT, encrypted_content=""),
        summary(0, "First"),
        summary(0, "then é", part=1),
        done(0, THOUGHT),
        added(1, message()),
        event("response.content_part.added", output_index=1, content_index=0, part=text_part("")),
        text(1, "Grüße 🙂 "),
        text(1, "an\nalle"),
        done(1, message(text_part("Grüße 🙂 an\nalle"))),
        added(2, CALL, arguments=""),
        arguments(2, '{"path": '),
        arguments(2, '"x"}'),
        done(2, CALL),
        event("response.output_text.delta", output_index=1, delta=7),
        ended(usage=USAGE),
    )
)
BROKEN = (
    RICH[: RICH.index(b"event: response.completed")],
    RICH[:400],
    text(0, "a") + b"data: {oops\n\n",
    text(0, "a") + event("error", code="server_error", message="no", param=None, sequence_number=3),
    text(0, "a") + ended("failed", error={"code": "server_error", "message": "no"}),
    text(0, "a") + ended().rstrip(),
    b"<html>\n</html>",
)


def outcome(reads: list[bytes]) -> tuple[list[Chunk], str | None]:
    chunks, stream = read(*reads)
    return joined(chunks), str(stream.failure)


@pytest.mark.parametrize("stream", [RICH, *BROKEN])
def test_answer_is_the_same_when_split_in_two_at_any_byte(stream: bytes) -> None:
    expected = outcome([stream])
    for at in range(0, len(stream), 3):
        assert outcome([stream[:at], stream[at:]]) == expected
    assert outcome([stream[at : at + 1] for at in range(len(stream))]) == expected


@given(st.sampled_from([RICH, *BROKEN]), st.lists(st.integers(0, len(RICH)), max_size=30))
def test_answer_is_the_same_however_it_is_split_into_reads(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert outcome([stream[start:end] for start, end in pairwise(edges)]) == outcome([stream])


@given(st.binary(max_size=300), st.integers(0, len(RICH)))
def test_no_stream_however_malformed_raises(noise: bytes, at: int) -> None:
    chunks, stream = read(RICH[:at] + noise + RICH[at:])
    assert stream.over
    assert stream.failure is not None or isinstance(chunks[-1], Finished)


def test_all_parts_of_an_answer_arrive_in_order() -> None:
    assert joined(answer(RICH)) == [
        ReasoningDelta("First\n\nthen é"),
        ReasoningEnd(json.dumps(THOUGHT, ensure_ascii=False)),
        TextDelta("Grüße 🙂 an\nalle"),
        ToolCallDelta(0, '{"path": "x"}', "call_a", "view"),
        TokenUsage(input_tokens=30, output_tokens=9, cache_read_tokens=20, cache_write_tokens=4, reasoning_tokens=5),
        Finished("tool_calls"),
    ]


def test_item_of_reasoning_is_kept_byte_for_byte() -> None:
    raw = b'{ "type":"reasoning", "new_field": [1.50, null],"id":"rs", "encrypted_content" :"q\\u00e9" }'
    line = b'data: {"type":"response.output_item.done","output_index":0,"item":' + raw + b"}\n\n"
    assert answer(line, ended())[0] == ReasoningEnd(raw.decode())


def test_several_items_of_reasoning_keep_their_order() -> None:
    second = {**THOUGHT, "id": "rs_2", "summary": [], "encrypted_content": "BBBB"}
    chunks = answer(
        *(added(0, THOUGHT), summary(0, "a"), done(0, THOUGHT)),
        *(added(1, second), done(1, second)),
        *(added(2, message()), text(2, "Look."), done(2, message(text_part("Look.")))),
        *(added(3, second), done(3, {**second, "id": "rs_3"})),
        *(added(4, CALL), arguments(4, "{}"), done(4, CALL)),
        ended(),
    )
    kinds = [type(chunk) for chunk in chunks]
    assert kinds[:6] == [ReasoningDelta, ReasoningEnd, ReasoningEnd, TextDelta, ReasoningEnd, ToolCallDelta]
    kept = [json.loads(chunk.opaque)["id"] for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    assert kept == ["rs_1", "rs_2", "rs_3"]


def test_reasoning_that_the_provider_cannot_read_again_is_only_shown() -> None:
    plain = {key: value for key, value in THOUGHT.items() if key != "encrypted_content"}
    chunks = answer(
        *(added(0, plain), summary(0, "one"), done(0, plain)),
        *(added(1, plain), summary(1, "two"), done(1, plain)),
        *(added(2, message()), text(2, "Hi."), ended()),
    )
    assert chunks[:2] == [ReasoningDelta("one\n\ntwo"), TextDelta("Hi.")]


def test_open_reasoning_is_shown_and_goes_back() -> None:
    item = {"id": "rs", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    chunks = answer(
        event("response.reasoning_text.delta", output_index=0, content_index=0, delta="hm"), done(0, item), ended()
    )
    assert chunks[:2] == [ReasoningDelta("hm"), ReasoningEnd(json.dumps(item))]


def test_text_of_several_parts_is_joined() -> None:
    whole = message(text_part("One, "), text_part("two."))
    shown = answer(added(0, whole), text(0, "One, "), text(0, "two.", part=1), done(0, whole), ended())
    assert (text_of(shown), finish_of(shown)) == ("One, two.", "stop")
    assert text_of(answer(done(0, whole), ended())) == "One, two."


def test_messages_in_a_row_stay_apart_and_keep_their_phases() -> None:
    first, second = message(text_part("I look."), phase="commentary"), message(text_part("Done."), phase="final_answer")
    plain = message(text_part("Bye."))
    chunks = answer(
        *(added(0, first), text(0, "I look."), done(0, first)),
        *(added(1, second), text(1, "Done."), done(1, second)),
        *(added(2, plain), text(2, "Bye."), done(2, plain)),
        ended(),
    )
    assert chunks[:-1] == [
        ReasoningEnd('{"type":"message","phase":"commentary"}'),
        TextDelta("I look."),
        ReasoningEnd('{"type":"message","phase":"final_answer"}'),
        TextDelta("Done."),
        ReasoningEnd('{"type":"message"}'),
        TextDelta("Bye."),
    ]


def test_refusal_is_text() -> None:
    refused = message({"type": "refusal", "refusal": "I can't."})
    streamed = event("response.refusal.delta", output_index=0, content_index=0, delta="I can't.")
    assert text_of(answer(added(0, refused), streamed, done(0, refused), ended())) == "I can't."
    assert text_of(answer(done(0, refused), ended())) == "I can't."


def test_parallel_calls_keep_their_arguments_apart() -> None:
    other = {**CALL, "id": "fc_2", "call_id": "call_b", "name": "list"}
    chunks = answer(
        *(added(0, CALL), added(1, other), arguments(0, '{"a"'), arguments(1, "{"), arguments(0, ":1}")),
        *(arguments(1, "}"), done(0, CALL), done(1, other), ended()),
    )
    assert tool_calls_of(chunks) == [("call_a", "view", '{"a":1}'), ("call_b", "list", "{}")]


def test_items_that_did_not_stream_are_taken_from_the_finished_ones() -> None:
    items = [THOUGHT, message(text_part("Hi.")), CALL]
    expected = joined(answer(*(done(index, item) for index, item in enumerate(items)), ended(usage=USAGE)))
    assert [type(chunk) for chunk in expected[:4]] == [ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta]
    assert joined(answer(ended(output=items, usage=USAGE))) == expected
    whole = ResponsesStream(HOST)
    body = {"object": "response", "status": "completed", "output": items, "usage": USAGE}
    assert joined(whole.whole(json.dumps(body, ensure_ascii=False).encode())) == expected


def test_finished_response_repeats_nothing() -> None:
    items = [THOUGHT, message(text_part("Grüße 🙂 an\nalle")), CALL]
    ending = ended(usage=USAGE)
    again = RICH.replace(ending, ended(output=items, usage=USAGE))
    assert again != RICH
    assert joined(answer(again)) == joined(answer(RICH))


def test_items_without_an_index_are_told_apart_by_their_ids() -> None:
    other = {**CALL, "id": "fc_2", "call_id": "call_b"}
    stream = b"".join(
        event(kind, **fields)
        for kind, fields in (
            ("response.output_item.added", {"item": {**CALL, "arguments": ""}}),
            ("response.function_call_arguments.delta", {"item_id": "fc_1", "delta": "{}"}),
            ("response.output_item.done", {"item": CALL}),
            ("response.output_item.done", {"item": {**other, "arguments": "[]"}}),
        )
    )
    chunks = answer(stream, ended(output=[CALL, other]))
    assert tool_calls_of(chunks) == [("call_a", "view", "{}"), ("call_b", "view", "[]")]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "other"), (None, "other")],
)
def test_incomplete_response_says_why_and_reports_usage(reason: str | None, expected: str) -> None:
    incomplete = ended("incomplete", incomplete_details={"reason": reason}, usage=USAGE)
    chunks = answer(added(0, message()), text(0, "a"), incomplete)
    assert (text_of(chunks), finish_of(chunks)) == ("a", expected)
    usage = usage_of(chunks)
    assert usage is not None
    assert usage.output_tokens == 9


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"code": "server_error", "message": "?"}, "model_unavailable", True),
        ({"code": "rate_limit_exceeded", "message": "Limit. Please try again in 1.5s."}, "model_rate_limited", True),
        ({"code": "insufficient_quota", "message": "pay"}, "model_rate_limited", False),
        ({"code": "context_length_exceeded", "message": "too long"}, "model_context_exceeded", False),
        ({"code": "invalid_prompt", "message": "no"}, "model_refused", False),
        ({"code": "invalid_image", "message": "no"}, "model_refused", False),
        ({"code": "not known yet", "message": "?"}, "model_unavailable", True),
        ({"code": 7, "message": None}, "model_unavailable", True),
    ],
)
def test_failure_in_mid_stream_maps_to_its_code(error: dict[str, Any], code: str, retryable: bool) -> None:
    begun = added(0, message()) + text(0, "a")
    for failed in (
        failure(begun, ended("failed", error=error)),
        failure(begun, event("error", sequence_number=4, param=None, **error)),
        failure(begun, event("error", error={"type": "some_error", **error})),
    ):
        assert (failed.code, failed.retryable) == (code, retryable)
    chunks, _ = read(begun, ended("failed", error=error))
    assert text_of(chunks) == "a"


def test_rate_limit_in_mid_stream_says_when_to_try_again() -> None:
    slow = {"code": "rate_limit_exceeded", "message": "Rate limit. Please try again in 350ms. Visit us."}
    assert failure(ended("failed", error=slow)).retry_after_seconds == 0.35


def test_failed_response_without_an_error_is_a_failure() -> None:
    assert failure(ended("failed")).code == "model_unavailable"
    assert failure(ended("cancelled")).code == "model_unavailable"


def test_stream_that_ends_early_is_cut() -> None:
    assert failure(added(0, message()), text(0, "a")).code == "model_cut"
    assert failure(text(0, "a"), b'data: {"type": "resp').code == "model_cut"
    assert failure(text(0, "a"), b"data: [DONE]\n\n").code == "model_cut"
    assert failure(b"").code == "model_cut"


def test_a_response_that_is_not_json_is_garbage() -> None:
    assert failure(text(0, "a"), b"data: {oops\n\n").code == "model_garbage"
    assert failure(b"hello\nthere\n").code == "model_garbage"
    assert failure(b"data: " + b"[" * 100_000 + b"\n\n").code == "model_garbage"


@pytest.mark.parametrize(
    ("spoken", "name"),
    [
        (b'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"a"}}]}\n\n', "chat completions"),
        (b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n', "Anthropic's Messages"),
    ],
)
def test_stream_of_another_api_is_refused_with_one_clear_sentence(spoken: bytes, name: str) -> None:
    refused = failure(spoken)
    assert (refused.code, refused.retryable) == ("model_refused", False)
    assert refused.message == (
        f"The model at model.test answered as {name} would: check that --model-base-url is the address of an API that "
        "speaks OpenAI's Responses."
    )


@pytest.mark.parametrize(
    "body",
    [
        {"object": "chat.completion", "choices": [{"message": {"content": "a"}}], "usage": {}},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"object": "list", "data": []},
        [],
    ],
)
def test_whole_answer_of_another_api_is_refused(body: Any) -> None:
    stream = ResponsesStream(HOST)
    assert stream.whole(json.dumps(body).encode()) == []
    assert stream.failure is not None


@pytest.mark.parametrize(
    "odd",
    [
        b"data: 5\n\n",
        b"data: null\n\n",
        b"data:\n\n",
        event("response.output_text.delta", output_index=0, delta=["a"]),
        event("response.output_text.delta", output_index=0),
        event("response.output_item.added", output_index=1),
        event("response.output_item.added", output_index=1, item=None),
        event("response.output_item.done", output_index=1, item="x"),
        event("response.output_item.done", output_index=1, item={"type": "reasoning", "summary": "x", "id": 3}),
        event("response.output_item.done", output_index=1, item={"type": "web_search_call", "content": 8}),
        event("response.function_call_arguments.delta", output_index=9, delta="{}"),
        event("response.something.new", delta={"a": 1}, item=[], response=4),
        event("keepalive"),
    ],
)
def test_malformed_event_never_ends_the_stream(odd: bytes) -> None:
    assert text_of(answer(added(0, message()), text(0, "a"), odd, text(0, "b"), ended())) == "ab"


def test_malformed_events_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    odd = event("response.output_text.delta", output_index=0, delta=3)
    with caplog.at_level(logging.WARNING, logger=streamed_answer.__name__):
        answer(odd, odd, ended())
    assert len(caplog.records) == 1


def test_malformed_parts_of_the_end_lose_only_themselves() -> None:
    usage = {"input_tokens": "many", "output_tokens": 3, "input_tokens_details": [], "output_tokens_details": {"x": 1}}
    chunks = answer(text(0, "a"), ended(usage=usage, incomplete_details="?", output=["x", 4, None]))
    assert usage_of(chunks) == TokenUsage(output_tokens=3)
    assert finish_of(chunks) == "stop"


def test_reasoning_without_any_call_is_an_answer() -> None:
    assert reasoning_of(answer(added(0, THOUGHT), summary(0, "hm"), done(0, THOUGHT), ended("incomplete"))) == "hm"


def test_endless_reasoning_is_not_kept() -> None:
    thoughts = [{**THOUGHT, "id": f"rs_{n}", "encrypted_content": "x" * 1_000_000} for n in range(6)]
    chunks = answer(*(done(n, thought) for n, thought in enumerate(thoughts)), ended())
    assert sum(isinstance(chunk, ReasoningEnd) for chunk in chunks) == MAX_KEPT_CHARACTERS // 1_000_000 - 1
    assert finish_of(chunks) == "stop"
