"""The HTTP model with the wire of Anthropic's Messages, against the scripted server and against broken responses."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.anthropic_messages import API_VERSION, AnthropicMessages
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import ModelInfo
from holdfast.models.messages_stream import MAX_RESUMPTIONS
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    ModelError,
    ModelRequest,
    Reasoning,
    SystemText,
    TokenUsage,
    ToolOutcome,
    ToolSpec,
    ToolUse,
    UserText,
)
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.models.title_request import title_request
from tests.models.answers import (
    answer_of,
    asking,
    failed_answer_of,
    finish_of,
    joined,
    reasoning_of,
    text_of,
    tool_calls_of,
    turn_of,
    usage_of,
)
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
INFO = ModelInfo(window=200_000, max_output=64_000)


def only(*replies: Reply) -> Script:
    return Script((Rule(replies),))


def model_at(url: str, model: str = "claude-opus-4-5", **options: Any) -> HttpModel:
    return HttpModel(AnthropicMessages(model=model, info=INFO), base_url=url, name="anthropic/m", **options)


@asynccontextmanager
async def served(
    script: Script, model: str = "claude-opus-4-5", **options: Any
) -> AsyncIterator[tuple[HttpModel, ModelServer]]:
    async with (
        ModelServer(script, api_key="k", **options) as server,
        model_at(server.url, model, api_key="k") as client,
    ):
        yield client, server


async def error_at(url: str, request: ModelRequest | None = None) -> ModelError:
    async with model_at(url, api_key="sk-secret") as model:
        return (await failed_answer_of(model, request or asking()))[1]


async def error_from(*writes: bytes) -> ModelError:
    async with RawServer(writes) as server:
        return await error_at(server.url)


RICH = Reply(
    reasoning="Let me think.",
    redacted="hidden",
    text="one two",
    tool_calls=(ScriptedCall("look", {"at": [1, "ö"]}), ScriptedCall("look")),
)


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_is_that_of_the_script(stream: bool) -> None:
    async with served(only(RICH)) as (model, server):
        chunks = joined(await answer_of(model, asking(stream=stream)))
        assert server.headers[0]["authorization"] == "Bearer k"
        assert server.headers[0]["anthropic-version"] == API_VERSION
    in_process = joined(await answer_of(ScriptedModel(only(RICH)), asking()))
    assert (text_of(chunks), reasoning_of(chunks)) == (text_of(in_process), reasoning_of(in_process))
    assert [call[1:] for call in tool_calls_of(chunks)] == [("look", '{"at":[1,"ö"]}'), ("look", "")]
    assert finish_of(chunks) == "tool_calls"


STEPS = 30


def thirty_steps() -> Script:
    steps = [
        Reply(
            reasoning=f"Thought {n}.",
            redacted="hidden" if n % 3 else "",
            text=f"Step {n}.",
            tool_calls=(ScriptedCall("look", {"n": n}), ScriptedCall("look")),
            more=(Reply(reasoning="And?", tool_calls=(ScriptedCall("look", {"last": n}),)),) if n % 2 else (),
        )
        for n in range(STEPS)
    ]
    return only(*steps, Reply(text="Done."))


def conversation() -> list[ContextMessage]:
    return [SystemText("You look at things. " * 1000), UserText("Look. " * 1000)]


async def work_through(model: HttpModel, **options: Any) -> tuple[list[ContextMessage], list[TokenUsage]]:
    """Thirty steps with tools and an answer, each call with the whole conversation before it."""
    messages, usages = conversation(), []
    for step in range(STEPS + 1):
        request = ModelRequest(messages=tuple(messages), tools=(LOOK,), cache_anchor=1, **options)
        chunks = await answer_of(model, request)
        usage = usage_of(chunks)
        assert usage is not None
        usages.append(usage)
        turn = turn_of(chunks, model.reasoning_source)
        assert turn.text == (f"Step {step}." if step < STEPS else "Done.")
        messages += [turn, *(ToolOutcome(use.tool_call_id, "It is there. " * 20) for use in turn.tool_calls)]
    return messages, usages


@pytest.mark.parametrize("model", ["claude-opus-4-5", "claude-opus-5"])
async def test_thirty_steps_with_thinking_are_accepted_and_cached(model: str) -> None:
    async with served(thirty_steps(), model) as (client, server):
        messages, usages = await work_through(client, thinking=4_000)
        bodies = [json.loads(body) for body in server.requests]
    assert len(bodies) == STEPS + 1
    assert all("thinking" in body for body in bodies)
    kinds = [part["type"] for message in bodies[-1]["messages"] for part in message["content"]]
    assert kinds.count("thinking") == STEPS + STEPS // 2
    assert kinds.count("redacted_thinking") == STEPS * 2 // 3
    assert sum(len(turn.reasoning) for turn in messages if isinstance(turn, AssistantTurn)) == 65
    for usage in usages[2:]:
        assert usage.input_tokens is not None
        assert (usage.cache_read_tokens or 0) / usage.input_tokens > 0.9
    assert (
        sum(usage.cache_read_tokens or 0 for usage in usages) / sum(usage.input_tokens or 0 for usage in usages) > 0.9
    )
    # All but the first call read what the call before had written.
    for before, after in pairwise(usages):
        assert after.cache_read_tokens == before.input_tokens


async def test_nothing_is_cached_without_marks() -> None:
    async with served(thirty_steps()) as (model, server):
        _, usages = await work_through(model, thinking=4_000, marks_cache=False)
        assert {usage.cache_read_tokens for usage in usages} == {0}
        assert not any(b"cache_control" in body for body in server.requests)


async def test_anchor_keeps_the_beginning_in_the_cache_after_more_parts_than_a_mark_looks_back() -> None:
    calls = tuple(ScriptedCall("look", {"n": n}) for n in range(30))
    async with served(only(Reply(tool_calls=calls), Reply(text="Done."))) as (model, _):
        messages: list[ContextMessage] = conversation()
        for anchored in (True, False):
            request = ModelRequest(messages=tuple(messages), tools=(LOOK,))
            turn = turn_of(await answer_of(model, request), model.reasoning_source)
            longer = (*messages, turn, *(ToolOutcome(use.tool_call_id, "seen") for use in turn.tool_calls))
            request = ModelRequest(messages=longer, tools=(LOOK,), cache_anchor=1 if anchored else None)
            usage = usage_of(await answer_of(model, request))
            assert usage is not None
            assert ((usage.cache_read_tokens or 0) > 5_000) is anchored
            # Another conversation, of which nothing is in the cache.
            messages = [SystemText("You see things. " * 1000), UserText("See. " * 1000)]


async def test_thinking_is_sent_back_to_no_other_model() -> None:
    async with served(only(RICH, Reply(text="Done."))) as (model, server):
        turn = turn_of(await answer_of(model, asking()), model.reasoning_source)
        results = [ToolOutcome(use.tool_call_id, "seen") for use in turn.tool_calls]
        request = ModelRequest(messages=(UserText("hello"), turn, *results), thinking=2_000)
        async with model_at(server.url, "claude-haiku-4-5", api_key="k") as other:
            assert (await failed_answer_of(other, request))[1].code == "model_refused"
        assert text_of(await answer_of(model, request)) == "Done."


async def test_conversation_of_another_provider_goes_on_here() -> None:
    foreign = AssistantTurn(
        "Let me see.",
        (ToolUse(ToolCallId("call.1/ü"), "look", "{"), ToolUse(ToolCallId("call_2"), "look", '{"a": 1}')),
        (Reasoning("Hm.", '{"reasoning_content":"Hm."}'),),
        "elsewhere",
    )
    image = Image(media_type="image/png", data=b"\x89PNG")
    messages: tuple[ContextMessage, ...] = (
        SystemText("Be brief."),
        UserText("hello"),
        foreign,
        ToolOutcome(ToolCallId("call.1/ü"), "", (image,)),
        ToolOutcome(ToolCallId("call_2"), "seen"),
    )
    async with served(only(RICH, Reply(text="Done: {last_tool_result}"))) as (model, server):
        for thinking in (None, 0, 2_000):
            request = ModelRequest(messages=messages, tools=(LOOK,), thinking=thinking)
            assert text_of(await answer_of(model, request)) == "Done: seen"
        # In the middle of a turn that did not begin with thinking, the provider refuses it.
        assert "thinking" not in json.loads(server.requests[-1])
        request = ModelRequest(messages=(*messages, AssistantTurn("Done."), UserText("hello again")), thinking=2_000)
        assert "thought" in tool_calls_of(await answer_of(model, request))[0][0]


async def test_request_for_a_title_is_answered() -> None:
    async with served(only(RICH)) as (model, _):
        assert text_of(await answer_of(model, title_request("what is the weather"))) == "What is the weather"


@pytest.mark.parametrize("stream", [True, False])
async def test_paused_answer_is_one_answer(stream: bool) -> None:
    script = only(
        Reply(reasoning="Hm.", text="one two three four", tool_calls=(ScriptedCall("look"),), pauses=(2, 4)),
        Reply(text="Done."),
    )
    async with served(script) as (model, server):
        chunks = await answer_of(model, asking(stream=stream))
        assert text_of(chunks) == "one two three four"
        assert (reasoning_of(chunks), finish_of(chunks)) == ("Hm.", "tool_calls")
        assert len(server.requests) == 3
        usage = usage_of(chunks)
        assert usage is not None
        assert usage.input_tokens == sum(count.total for count in server.counts)
        turn = turn_of(chunks, model.reasoning_source)
        results = [ToolOutcome(use.tool_call_id, "seen") for use in turn.tool_calls]
        request = ModelRequest(messages=(UserText("hello"), turn, *results), thinking=2_000)
        assert text_of(await answer_of(model, request)) == "Done."


async def test_usage_of_a_paused_answer_is_told_once() -> None:
    usage = TokenUsage(input_tokens=100, output_tokens=7, cache_read_tokens=0, cache_write_tokens=0)
    async with served(only(Reply(text="one two three", pauses=(1, 2), usage=usage))) as (model, _):
        told = usage_of(await answer_of(model, asking()))
        assert told == msgspec.structs.replace(usage, context_tokens=107), "the context is that of the last call"


async def test_failure_in_a_continued_answer_is_that_of_the_call() -> None:
    script = only(Reply(text="one two three", pauses=(1,), fail=Failure(kind="error_event", after=2)))
    async with served(script) as (model, _):
        chunks, error = await failed_answer_of(model, asking())
    assert text_of(chunks) == "one two"
    assert (error.code, error.retryable) == ("model_unavailable", True)


async def test_answer_that_pauses_again_and_again_ends() -> None:
    event = (
        b'data: {"type":"message_start","message":{}}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"pause_turn"}}\n\n'
        b'data: {"type":"message_stop"}\n\n'
    )
    async with RawServer([http(event)], keep=True) as server, model_at(server.url) as model:
        assert finish_of(await answer_of(model, asking())) == "other"
        assert len(server.requests) == MAX_RESUMPTIONS + 1


# Failures


@pytest.mark.parametrize(
    ("kind", "code", "retryable", "status"),
    [
        ("rate_limited", "model_rate_limited", True, 429),
        ("overloaded", "model_unavailable", True, 529),
        ("unavailable", "model_unavailable", True, 503),
        ("unauthorized", "model_unauthorized", False, 401),
        ("refused", "model_refused", False, 400),
        ("too_large", "model_refused", False, 413),
        ("context_exceeded", "model_context_exceeded", False, 400),
        ("error_event", "model_unavailable", True, 529),
        ("cut", "model_cut", True, None),
        ("malformed", "model_garbage", True, None),
    ],
)
async def test_failure_of_the_provider(kind: FailureKind, code: str, retryable: bool, status: int | None) -> None:
    script = only(Reply(text="one two", fail=Failure(kind=kind, times=1, after=1, retry_after=2.5, window=1_000)))
    async with served(script) as (model, _):
        _, error = await failed_answer_of(model, asking())
        assert (error.code, error.retryable, error.status) == (code, retryable, status)
        assert error.retry_after_seconds == (2.5 if kind in ("rate_limited", "overloaded") else None)
        assert error.window == (1_000 if kind == "context_exceeded" else None)
        assert text_of(await answer_of(model, asking())) == "one two"


async def test_call_beyond_the_window_names_the_window() -> None:
    async with served(only(Reply(text="fine")), window=1_000) as (model, _):
        _, error = await failed_answer_of(model, asking("x" * 10_000))
        assert (error.code, error.window, error.retryable) == ("model_context_exceeded", 1_000, False)
        known = msgspec.structs.replace(asking(), window=1_000)
        assert text_of(await answer_of(model, known)) == "fine"


async def test_answer_that_would_not_fit_is_refused_with_the_window_that_makes_it_fit() -> None:
    async with served(only(Reply(text="fine")), window=10_000) as (model, _):
        _, error = await failed_answer_of(model, asking("x" * 10_000))
        assert (error.code, error.window) == ("model_context_exceeded", 10_000)
        assert "exceed context limit: " in error.message
        known = msgspec.structs.replace(asking("x" * 10_000), window=10_000)
        assert text_of(await answer_of(model, known)) == "fine"


@pytest.mark.parametrize(
    ("said", "window"),
    [
        ("prompt is too long: 205000 tokens > 200000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease either", 200_000),
        ("prompt is too long", None),
    ],
)
async def test_window_is_found_in_the_words_of_the_provider(said: str, window: int | None) -> None:
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": said}}).encode()
    error = await error_from(http(body, status="400 Bad Request", content_type="application/json"))
    assert (error.code, error.window) == ("model_context_exceeded", window)


async def test_server_that_speaks_another_protocol_is_named_in_one_sentence() -> None:
    not_found = http(b'{"detail":"Not Found"}', status="404 Not Found", content_type="application/json")
    chat = http(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n')
    for write in (not_found, chat):
        error = await error_from(write)
        assert (error.code, error.retryable) == ("model_refused", False)
        assert "check that --model-base-url is the address of an API that speaks Anthropic's Messages" in error.message


async def test_model_that_does_not_exist_is_no_wrong_address() -> None:
    body = b'{"type":"error","error":{"type":"not_found_error","message":"model: claude-x"}}'
    error = await error_from(http(body, status="404 Not Found", content_type="application/json"))
    assert "model: claude-x" in error.message


async def test_key_is_in_no_message() -> None:
    body = b'{"type":"error","error":{"type":"invalid_request_error","message":"bad key sk-secret"}}'
    error = await error_from(http(body, status="400 Bad Request", content_type="application/json"))
    assert "sk-secret" not in error.message


async def test_window_and_cache_are_those_of_each_protocol() -> None:
    """The two clothes of the server share the script and not the cache."""
    wires: list[ModelWire] = [AnthropicMessages(model="m"), ChatCompletions("m")]
    async with ModelServer(only(Reply(text="fine"))) as server:
        for wire in wires:
            async with HttpModel(wire, base_url=server.url, name="m") as model:
                usages: list[list[Chunk]] = [await answer_of(model, asking("x" * 4000)) for _ in range(2)]
            first, second = (usage_of(chunks) for chunks in usages)
            assert first is not None
            assert second is not None
            assert first.cache_read_tokens == 0
            assert second.cache_read_tokens == second.input_tokens
