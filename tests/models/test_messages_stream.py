"""Decoding an answer of Anthropic's Messages: any split into reads, any kind of block, broken and unknown events."""

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import messages_blocks, streamed_answer
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.messages_stream import MAX_RESUMPTIONS, MessagesStream
from holdfast.models.model import Chunk, Finished, ReasoningDelta, ReasoningEnd, TextDelta, TokenUsage, ToolCallDelta
from tests.models.answers import finish_of, joined, reasoning_of, text_of, tool_calls_of, usage_of

HOST = ModelEndpoint(host="model.test", path="/messages")
BODY = b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}'


def event(type: str, **fields: Any) -> bytes:
    data = json.dumps({"type": type, **fields}, ensure_ascii=False).encode()
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data)


def start(**usage: Any) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    return event("message_start", message=message)


def opened(index: int, type: str, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": type, **fields})


def delta(index: int, type: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": f"{type}_delta", **fields})


def closed(index: int) -> bytes:
    return event("content_block_stop", index=index)


def text(index: int, *pieces: str) -> bytes:
    deltas = b"".join(delta(index, "text", text=piece) for piece in pieces)
    return opened(index, "text", text="") + deltas + closed(index)


def end(reason: str | None = "end_turn", *, details: Any = None, **usage: Any) -> bytes:
    ending = event("message_delta", delta={"stop_reason": reason, "stop_details": details}, usage=usage)
    return ending + event("message_stop")


def read(*reads: bytes) -> tuple[list[Chunk], MessagesStream]:
    stream = MessagesStream(HOST)
    return read_on(stream, *reads), stream


def read_on(stream: MessagesStream, *reads: bytes) -> list[Chunk]:
    chunks = [chunk for part in reads for chunk in stream.feed(part)]
    return chunks if stream.over else chunks + stream.end()


def whole(*parts: bytes) -> list[Chunk]:
    chunks, stream = read(b"".join(parts))
    assert stream.failure is None
    return chunks


def failure(*parts: bytes) -> tuple[str, bool]:
    _, stream = read(b"".join(parts))
    assert stream.failure is not None
    return stream.failure.code, stream.failure.retryable


RICH = b"".join(
    (
        start(input_tokens=10, cache_creation_input_tokens=200, cache_read_input_tokens=3000, output_tokens=1),
        event("ping"),
        opened(0, "thinking", thinking="", signature=""),
        delta(0, "thinking", thinking="Hm, "),
        delta(0, "thinking", thinking="é 🙂"),
        delta(0, "signature", signature="c2ln"),
        closed(0),
        opened(1, "redacted_thinking", data="Zm9v"),
        closed(1),
        b": a comment\r\n\r\n",
        text(2, "Grüße ", "an\nalle").replace(b"\n\n", b"\r\n\r\n"),
        opened(3, "tool_use", id="toolu_1", name="look", input={}),
        delta(3, "input_json", partial_json=""),
        delta(3, "input_json", partial_json='{"at":'),
        delta(3, "input_json", partial_json=' "x"}'),
        closed(3),
        opened(4, "thinking", thinking="So.", signature="c29z"),
        closed(4),
        opened(5, "tool_use", id="toolu_2", name="look", input={}),
        closed(5),
        end("tool_use", output_tokens=25, output_tokens_details={"thinking_tokens": 9}),
    )
)

RICH_CHUNKS = [
    ReasoningDelta("Hm, é 🙂"),
    ReasoningEnd('{"type":"thinking","signature":"c2ln"}'),
    ReasoningEnd('{"type":"redacted_thinking","data":"Zm9v"}'),
    TextDelta("Grüße an\nalle"),
    ToolCallDelta(0, '{"at": "x"}', "toolu_1", "look"),
    ReasoningDelta("So."),
    ReasoningEnd('{"type":"thinking","signature":"c29z"}'),
    ToolCallDelta(1, "", "toolu_2", "look"),
    TokenUsage(input_tokens=3210, output_tokens=25, cache_read_tokens=3000, cache_write_tokens=200, reasoning_tokens=9),
    Finished("tool_calls"),
]


def test_blocks_become_chunks_in_their_order() -> None:
    assert joined(whole(RICH)) == RICH_CHUNKS


@given(st.lists(st.integers(0, len(RICH)), max_size=20))
def test_split_into_reads_does_not_matter(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(RICH)]
    chunks, stream = read(*(RICH[start:end] for start, end in pairwise(bounds)))
    assert stream.failure is None
    assert joined(chunks) == RICH_CHUNKS


@given(st.integers(0, len(RICH) - len(end("tool_use"))))
def test_cut_answer_is_never_taken_for_a_whole_one(cut: int) -> None:
    chunks, stream = read(RICH[:cut])
    assert stream.failure is not None
    assert stream.failure.retryable
    assert not any(isinstance(chunk, Finished) for chunk in chunks)


def test_answer_that_does_not_stream_gives_the_same_chunks() -> None:
    message = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "Hm, é 🙂", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "Zm9v"},
            {"type": "text", "text": "Grüße an\nalle"},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "x"}},
            {"type": "thinking", "thinking": "So.", "signature": "c29z"},
            {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 200,
            "cache_read_input_tokens": 3000,
            "output_tokens": 25,
            "output_tokens_details": {"thinking_tokens": 9},
        },
    }
    stream = MessagesStream(HOST)
    chunks = joined(stream.whole(json.dumps(message).encode()))
    assert stream.over
    assert [chunk for chunk in chunks if not isinstance(chunk, ToolCallDelta)] == [
        chunk for chunk in RICH_CHUNKS if not isinstance(chunk, ToolCallDelta)
    ]
    assert tool_calls_of(chunks) == [("toolu_1", "look", '{"at":"x"}'), ("toolu_2", "look", "")]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "other"),
        (None, "other"),
    ],
)
def test_reason_of_the_end(reason: str | None, expected: str) -> None:
    assert finish_of(whole(start(), text(0, "hi"), end(reason))) == expected


def test_refusal_is_explained_if_nothing_was_said() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}
    assert text_of(whole(start(), end("refusal", details=details))) == "This could do harm."
    assert text_of(whole(start(), text(0, "Well, "), end("refusal", details=details))) == "Well, "


def test_reason_is_enough_although_the_last_event_is_missing() -> None:
    answer = start() + text(0, "hi") + end("end_turn", output_tokens=3)
    assert finish_of(whole(answer.removesuffix(event("message_stop")))) == "stop"


def test_usage_of_the_end_counts() -> None:
    usage = usage_of(whole(start(input_tokens=5, output_tokens=1), end(input_tokens=6, output_tokens=9)))
    assert usage == TokenUsage(input_tokens=6, output_tokens=9)


@pytest.mark.parametrize("usage", [{}, {"input_tokens": -1}, {"input_tokens": 2**60}, {"input_tokens": None}])
def test_implausible_usage_is_unknown(usage: dict[str, Any]) -> None:
    found = usage_of(whole(start(**usage), text(0, "hi"), end()))
    assert found is None or found == TokenUsage()


# Odd and broken streams


def test_unknown_events_deltas_and_blocks_do_not_disturb() -> None:
    answer = (
        start(),
        event("message_weather", mood="sunny"),
        opened(0, "text", text="", citations=[]),
        delta(0, "citations", citation={"type": "page_location"}),
        delta(0, "text", text="hi"),
        delta(0, "smell", smell="roses"),
        closed(0),
        end(),
    )
    assert text_of(whole(*answer)) == "hi"


def test_block_of_an_unknown_kind_is_kept_for_its_provider() -> None:
    answer = (
        start(),
        opened(0, "server_tool_use", id="srv_1", name="web_search", input={}),
        delta(0, "input_json", partial_json='{"query":'),
        delta(0, "input_json", partial_json='"x"}'),
        closed(0),
        opened(1, "web_search_tool_result", tool_use_id="srv_1", content=[{"encrypted_content": "abc"}]),
        closed(1),
        text(2, "Found."),
        end(),
    )
    chunks = whole(*answer)
    kept = [json.loads(chunk.opaque) for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    assert kept == [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "abc"}]},
    ]
    assert (text_of(chunks), tool_calls_of(chunks), finish_of(chunks)) == ("Found.", [], "stop")


def test_pieces_for_an_unknown_block_are_shown_if_people_can_read_them() -> None:
    answer = (
        start(),
        delta(3, "text", text="hi"),
        delta(4, "thinking", thinking="hm"),
        delta(5, "input_json", partial_json="{}"),
        delta(6, "signature", signature="s"),
        closed(9),
        end(),
    )
    chunks = whole(*answer)
    assert (text_of(chunks), reasoning_of(chunks), tool_calls_of(chunks)) == ("hi", "hm", [])


def test_blocks_may_come_out_of_order() -> None:
    answer = (
        start(),
        opened(1, "tool_use", id="b", name="look", input={}),
        opened(0, "tool_use", id="a", name="look", input={}),
        delta(0, "input_json", partial_json='{"n":0}'),
        delta(1, "input_json", partial_json='{"n":1}'),
        closed(1),
        closed(0),
        end("tool_use"),
    )
    assert tool_calls_of(whole(*answer)) == [("b", "look", '{"n":1}'), ("a", "look", '{"n":0}')]


def test_events_before_the_start_and_blocks_without_an_end_count() -> None:
    answer = (opened(0, "thinking", thinking="hm", signature="s"), delta(1, "text", text="hi"), end())
    chunks = whole(*answer)
    assert (text_of(chunks), reasoning_of(chunks)) == ("hi", "hm")
    assert [chunk for chunk in chunks if isinstance(chunk, ReasoningEnd)]


def test_thinking_without_a_signature_does_not_go_back() -> None:
    answer = (start(), opened(0, "thinking", thinking="hm"), closed(0), text(1, "hi"), end())
    assert not [chunk for chunk in whole(*answer) if isinstance(chunk, ReasoningEnd)]


def test_signature_without_readable_thinking_goes_back() -> None:
    answer = (start(), opened(0, "thinking", thinking="", signature="s"), closed(0), text(1, "hi"), end())
    assert whole(*answer)[0] == ReasoningEnd('{"type":"thinking","signature":"s"}')


@pytest.mark.parametrize(
    "broken",
    [
        event("content_block_delta", index="zero", delta={"type": "text_delta", "text": 7}),
        event("content_block_delta", index=0, delta=["text"]),
        event("content_block_delta", index=0),
        event("content_block_start", index=7, content_block="text"),
        event("content_block_start", index=7),
        event("content_block_start"),
        event("message_delta", usage="much"),
        b'data: {"type":7}\n\n',
        b"data: []\n\n",
        b'data: {"type":"ping","more":"\\ud800"}\n\n',
    ],
)
def test_malformed_event_loses_only_itself(broken: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = (start(), opened(0, "text", text=""), delta(0, "text", text="one "), broken, delta(0, "text", text="two"))
    with caplog.at_level(logging.WARNING):
        chunks = whole(*answer, closed(0), end())
    assert text_of(chunks) == "one two"
    assert finish_of(chunks) == "stop"


def test_half_of_a_character_is_replaced() -> None:
    broken = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\ud83d"}}\n\n'
    assert text_of(whole(start(), opened(0, "text", text=""), broken, end())) == "a\ufffd"


@pytest.mark.parametrize("tail", [b"data: {", b"data: no json\n\n", b'data: {"type":\n\n'])
def test_data_that_is_not_json_ends_the_answer(tail: bytes) -> None:
    assert failure(start(), text(0, "hi"), tail)[1]


def test_something_that_is_no_event_stream_is_garbage() -> None:
    assert failure(b"Hello!\n") == ("model_garbage", True)
    assert failure(b"") == ("model_cut", True)
    assert failure(event("message_stop")) == ("model_garbage", True)


def test_huge_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_answer, "MAX_EVENT_BYTES", 1000)
    _, stream = read(b"data: " + b"x" * 600, b"x" * 600)
    assert stream.failure is not None
    assert stream.failure.code == "model_garbage"


def test_deeply_nested_event_is_no_bomb() -> None:
    assert failure(start(), b'data: {"type":"ping","x":' + b"[" * 100_000 + b"\n\n")[0] == "model_garbage"


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "model_unavailable", True),
        ({"type": "api_error", "message": "Internal"}, "model_unavailable", True),
        ({"type": "timeout_error", "message": "Slow"}, "model_unavailable", True),
        ({"type": "rate_limit_error", "message": "Slow down"}, "model_rate_limited", True),
        ({"type": "invalid_request_error", "message": "No"}, "model_refused", False),
        ({"type": "authentication_error", "message": "Who?"}, "model_unauthorized", False),
        ({"type": "billing_error", "message": "Pay"}, "model_refused", False),
        ({"type": "something_new", "message": "?"}, "model_unavailable", True),
        (None, "model_unavailable", True),
    ],
)
def test_error_in_mid_stream_ends_the_answer(error: Any, code: str, retryable: bool) -> None:
    chunks, stream = read(start() + opened(0, "text", text="one") + event("error", error=error) + end())
    assert text_of(chunks) == "one"
    assert stream.failure is not None
    assert (stream.failure.code, stream.failure.retryable) == (code, retryable)
    assert not any(isinstance(chunk, Finished) for chunk in chunks)


@pytest.mark.parametrize(
    ("payload", "api"),
    [
        ({"object": "chat.completion.chunk", "choices": [{"delta": {"content": "hi"}}]}, "chat completions"),
        ({"type": "response.created", "response": {}}, "OpenAI's Responses"),
    ],
)
def test_stream_of_another_api_is_named(payload: Any, api: str) -> None:
    _, stream = read(b"data: " + json.dumps(payload).encode() + b"\n\n")
    assert stream.failure is not None
    assert not stream.failure.retryable
    assert f"answered as {api} would" in stream.failure.message
    assert "Anthropic's Messages" in stream.failure.message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no json", "not JSON"),
        (b"[1]", "without content"),
        (b'{"type":"message"}', "without content"),
        (b'{"choices":[{"message":{"content":"hi"}}]}', "chat completions"),
        (b'{"object":"response","output":[]}', "OpenAI's Responses"),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "Overloaded"),
    ],
)
def test_whole_answer_that_is_none_is_an_error(body: bytes, said: str) -> None:
    stream = MessagesStream(HOST)
    assert stream.whole(body) == []
    assert stream.failure is not None
    assert said in stream.failure.message


def test_whole_answer_loses_only_its_malformed_parts() -> None:
    body = b'{"type":"message","content":[7,{"type":"text","text":7},{"type":"text","text":"hi"}],"usage":"much"}'
    stream = MessagesStream(HOST)
    assert text_of(stream.whole(body)) == "hi"
    assert stream.failure is None


# Pauses


def paused(*blocks: bytes, **usage: Any) -> bytes:
    return start(**usage) + b"".join(blocks) + end("pause_turn", output_tokens=5)


def test_paused_answer_goes_on_with_what_came() -> None:
    thinking = opened(0, "thinking", thinking="hm", signature="s") + closed(0)
    chunks, stream = read(paused(thinking, text(1, "one "), input_tokens=10))
    assert stream.over
    body = stream.resume(BODY)
    assert body is not None
    assert json.loads(body)["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "one"},
            ],
        }
    ]
    assert body.startswith(BODY.removesuffix(b"]}"))
    call = opened(1, "tool_use", id="a", name="look", input={}) + closed(1)
    chunks += read_on(stream, start(input_tokens=20), text(0, "two"), call, end("tool_use", output_tokens=7))
    assert stream.resume(BODY) is None
    assert text_of(chunks) == "one two"
    assert tool_calls_of(chunks) == [("a", "look", "")]
    assert usage_of(chunks) == TokenUsage(input_tokens=30, output_tokens=12, context_tokens=27)
    assert finish_of(chunks) == "tool_calls"


def test_what_the_provider_ran_itself_goes_back_while_it_pauses() -> None:
    search = opened(0, "server_tool_use", id="s", name="web_search", input={})
    search += delta(0, "input_json", partial_json='{"query":"x"}') + closed(0)
    _, stream = read(paused(search))
    body = stream.resume(BODY)
    assert body is not None
    assert json.loads(body)["messages"][-1]["content"] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    ]


def test_pause_before_anything_came_repeats_the_call() -> None:
    _, stream = read(paused())
    assert stream.resume(BODY) == BODY


def test_answer_is_continued_so_many_times_and_not_more_often() -> None:
    chunks, stream = read(paused(text(0, "a"), input_tokens=1))
    for _ in range(MAX_RESUMPTIONS):
        assert stream.resume(BODY) is not None
        chunks += read_on(stream, paused(text(0, "a"), input_tokens=1))
    assert stream.resume(BODY) is None
    assert text_of(chunks) == "a" * (MAX_RESUMPTIONS + 1)
    assert finish_of(chunks) == "other"
    assert usage_of(chunks) == TokenUsage(input_tokens=11, output_tokens=55, context_tokens=6)


def test_answer_that_is_too_much_to_keep_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_blocks, "MAX_KEPT_CHARACTERS", 100)
    chunks, stream = read(paused(text(0, "a" * 200)))
    assert stream.resume(BODY) is None
    assert finish_of(chunks) == "other"


def test_pause_without_its_end_is_a_cut() -> None:
    answer = paused(text(0, "one")).removesuffix(event("message_stop"))
    assert failure(answer) == ("model_cut", True)


def test_paused_answer_that_does_not_stream_goes_on() -> None:
    stream = MessagesStream(HOST)
    message = {"type": "message", "content": [{"type": "text", "text": "one"}], "stop_reason": "pause_turn"}
    chunks = stream.whole(json.dumps(message).encode())
    assert stream.resume(BODY) is not None
    chunks += stream.whole(json.dumps({**message, "stop_reason": "end_turn"}).encode())
    assert text_of(chunks) == "oneone"
    assert finish_of(chunks) == "stop"


# Anything at all

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats()
    | st.sampled_from(["", "a", "\ud800", "{", '{"a":'])
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
INDICES = st.integers(-1, 3) | JSON_VALUES
BLOCKS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", ""])
        | JSON_VALUES
    },
    optional=dict.fromkeys(("text", "thinking", "signature", "data", "id", "name", "input"), JSON_VALUES),
)
DELTAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "signature", "input_json", "citations"]).map("{}_delta".format)},
    optional=dict.fromkeys(("text", "thinking", "signature", "partial_json"), JSON_VALUES),
)
ENDINGS = st.fixed_dictionaries(
    {"stop_reason": st.sampled_from(["end_turn", "pause_turn", "tool_use", "refusal"]) | JSON_VALUES},
    optional={"stop_details": JSON_VALUES},
)
EVENTS = st.one_of(
    st.builds(
        lambda i, b: {"type": "content_block_start", "index": i, "content_block": b}, INDICES, BLOCKS | JSON_VALUES
    ),
    st.builds(lambda i, d: {"type": "content_block_delta", "index": i, "delta": d}, INDICES, DELTAS | JSON_VALUES),
    st.builds(lambda i: {"type": "content_block_stop", "index": i}, INDICES),
    st.builds(lambda d, u: {"type": "message_delta", "delta": d, "usage": u}, ENDINGS | JSON_VALUES, JSON_VALUES),
    st.builds(lambda m: {"type": "message_start", "message": m}, JSON_VALUES),
    st.sampled_from([{"type": "message_stop"}, {"type": "ping"}, {"type": "error"}]),
    JSON_VALUES,
)
LINES = EVENTS.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n") | st.binary(max_size=6)


@given(legs=st.lists(st.lists(LINES, max_size=12), min_size=1, max_size=3), size=st.integers(1, 60))
def test_no_stream_however_broken_raises_or_ends_twice(legs: list[list[bytes]], size: int) -> None:
    stream = MessagesStream(HOST)
    # Outside of the suite nothing holds its warnings back.
    stream._warned = True
    chunks: list[Chunk] = []
    for leg in legs:
        data = b"".join(leg)
        chunks += read_on(stream, *(data[at : at + size] for at in range(0, len(data), size)))
        assert stream.over
        body = stream.resume(BODY)
        if body is None:
            break
        assert json.loads(body)["messages"][0]["role"] == "user"
    ends = [chunk for chunk in chunks if isinstance(chunk, Finished)]
    assert len(ends) <= 1
    assert not ends or chunks[-1] is ends[0]
    assert not (ends and stream.failure)
    opened_calls = [chunk.index for chunk in chunks if isinstance(chunk, ToolCallDelta) and chunk.tool_call_id]
    assert opened_calls == sorted(opened_calls)
    for chunk in chunks:
        if isinstance(chunk, ReasoningEnd):
            assert json.loads(chunk.opaque)["type"]
