"""Conversations over each wire, against the strict server: long ones with tools and reasoning, and a switch of model
from each wire to each other."""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise, permutations
from typing import Any

import pytest

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.call_wait import ModelPatience
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import ModelInfo
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    ModelRequest,
    SystemText,
    ToolOutcome,
    ToolSpec,
    ToolUse,
    UserText,
)
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.prefix_cache import PrefixCount
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer
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

pytestmark = pytest.mark.anyio

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
PNG = Image(media_type="image/png", data=b"\x89PNG")
MARKED = ModelInfo(takes_cache_marks=True)

WIRES: dict[str, Callable[[], ModelWire]] = {
    "messages": lambda: AnthropicMessages("claude-opus-4-5", ModelInfo(max_output=64_000)),
    "responses": lambda: OpenAIResponses("gpt-6"),
    "chat": lambda: ChatCompletions("m"),
    "marked chat": lambda: ChatCompletions("anthropic/m", info=MARKED),
}
STEPS = 30


def model_at(url: str, wire: ModelWire) -> HttpModel:
    return HttpModel(wire, base_url=url, name="m", api_key="k")


def thirty_steps() -> Script:
    steps = (
        Reply(
            reasoning=f"Thought {n}. ",
            redacted="hidden" if n % 3 else "",
            text=f"Step {n}." if n % 4 else "",
            tool_calls=(ScriptedCall("look", {"n": n}), ScriptedCall("look")),
            more=(Reply(reasoning="And? ", text="More." * (n % 3), tool_calls=(ScriptedCall("look"),)),) * (n % 2),
        )
        for n in range(STEPS)
    )
    return Script((Rule((*steps, Reply(reasoning="Enough. ", text="Done."))),))


async def converse(model: HttpModel, messages: Iterable[ContextMessage], **options: Any) -> list[AssistantTurn]:
    """Work until an answer without calls, each call with the whole conversation before it."""
    said, turns = list(messages), list[AssistantTurn]()
    while not turns or turns[-1].tool_calls:
        chunks = await answer_of(model, ModelRequest(messages=tuple(said), tools=(LOOK,), cache_key="c", **options))
        turns.append(turn_of(chunks, model.reasoning_source))
        images = (PNG,) * (len(turns) % 2)
        results = (ToolOutcome(use.tool_call_id, "It is there. " * 9, images) for use in turns[-1].tool_calls)
        said += [turns[-1], *results]
    return turns


def cache_share(counts: Iterable[PrefixCount]) -> float:
    """The share of the tokens after the first call, which finds an empty cache, that was read from it."""
    _, *rest = counts
    return sum(count.read for count in rest) / sum(count.total for count in rest)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["responses", "chat", "marked chat"])
async def test_thirty_steps_with_reasoning_are_accepted_and_cached(wire: str, stream: bool) -> None:
    opening = (SystemText("You look at things. " * 2000), UserText("Look. " * 1000))
    async with ModelServer(thirty_steps()) as server, model_at(server.url, WIRES[wire]()) as model:
        turns = await converse(model, opening, stream=stream, cache_anchor=1)
        bodies = [json.loads(body) for body in server.requests]
        counts = list(server.counts)
    assert len(turns) == STEPS + 1
    assert turns[-1].text == "Done."
    assert all(after.read == before.total for before, after in pairwise(counts))
    assert cache_share(counts) >= 0.97
    if wire == "responses":
        kinds = [item["type"] for item in bodies[-1]["input"]]
        assert kinds.count("reasoning") == STEPS + STEPS // 2 + STEPS * 2 // 3
    else:
        sent = [message for message in bodies[-1]["messages"] if message["role"] == "assistant"]
        assert all(message["reasoning_details"] and message["reasoning_content"] for message in sent)
        assert sum(len(message["reasoning_details"]) for message in sent) == STEPS + STEPS // 2 + STEPS * 2 // 3


async def test_nothing_is_cached_for_a_provider_that_wants_marks_and_gets_none() -> None:
    opening = (SystemText("You look at things. " * 2000), UserText("Look."))
    async with ModelServer(thirty_steps()) as server, model_at(server.url, WIRES["marked chat"]()) as model:
        await converse(model, opening, marks_cache=False)
        assert {count.read for count in server.counts} == {0}


async def test_conversation_goes_on_with_the_cache_of_another_server_of_the_same_provider() -> None:
    """A restart of the server: its seals still hold, and only its cache is empty."""
    said: list[ContextMessage] = [UserText("Look.")]
    for _ in range(3):
        async with ModelServer(thirty_steps()) as server, model_at(server.url, WIRES["responses"]()) as model:
            turn = turn_of(await answer_of(model, ModelRequest(messages=tuple(said))), "same")
            said += [turn, *(ToolOutcome(use.tool_call_id, "r") for use in turn.tool_calls)]
    assert [message.text for message in said if isinstance(message, AssistantTurn)][:2] == ["", "Step 1.More."]


ODD = ToolUse(ToolCallId("functions.look:0 ü"), "look", "{}")
ODDER = ToolUse(ToolCallId("x" * 100), "look.at it", "not { json")
ODD_TWICE = (
    UserText("Look at a picture.", (PNG,)),
    AssistantTurn("", (ODD,)),
    ToolOutcome(ODD.tool_call_id, "one", (PNG,)),
    AssistantTurn("Again.", (ODD, ODDER)),
    ToolOutcome(ODD.tool_call_id, "two"),
    ToolOutcome(ODDER.tool_call_id, ""),
    AssistantTurn("I see."),
)
"""The beginning of a conversation with a server whose ids, names and arguments others refuse."""


@pytest.mark.parametrize(("before", "after"), list(permutations(WIRES, 2)))
async def test_switch_of_model_in_mid_conversation_is_accepted(before: str, after: str) -> None:
    opening: tuple[ContextMessage, ...] = (SystemText("You look at things."), *ODD_TWICE, UserText("Look."))
    async with ModelServer(thirty_steps()) as server:
        async with model_at(server.url, WIRES[before]()) as first:
            said = list(opening)
            for _ in range(4):
                request = ModelRequest(messages=tuple(said), tools=(LOOK,), thinking=4_000)
                turn = turn_of(await answer_of(first, request), first.reasoning_source)
                assert turn.reasoning
                said += [turn, *(ToolOutcome(use.tool_call_id, "seen", (PNG,)) for use in turn.tool_calls)]
        async with model_at(server.url, WIRES[after]()) as second:
            turns = await converse(second, said, thinking=4_000)
            assert turns[-1].text == "Done."
            # The conversation goes on where it stood.
            assert len(turns) == STEPS + 1 - 4
            said += [*turns[-1:], UserText("Look again.")]
            # Back to the first model, whose own reasoning is still there.
        async with model_at(server.url, WIRES[before]()) as first:
            request = ModelRequest(messages=tuple(said), tools=(LOOK,), thinking=4_000)
            assert reasoning_of(await answer_of(first, request)).startswith("Thought 0.")


RICH = Reply(
    reasoning="Let me think. ",
    text="one two",
    tool_calls=(ScriptedCall("look", {"at": [1, "ö"]}), ScriptedCall("look", "not { json")),
)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["responses", "chat"])
async def test_answer_is_that_of_the_script(wire: str, stream: bool) -> None:
    async with ModelServer(Script((Rule((RICH,)),))) as server, model_at(server.url, WIRES[wire]()) as model:
        chunks = joined(await answer_of(model, asking(stream=stream)))
        assert server.headers[0]["authorization"] == "Bearer k"
    assert (reasoning_of(chunks), text_of(chunks)) == ("Let me think. ", "one two")
    assert [call[1:] for call in tool_calls_of(chunks)] == [("look", '{"at":[1,"ö"]}'), ("look", "not { json")]
    assert finish_of(chunks) == "tool_calls"
    usage = usage_of(chunks)
    assert usage is not None
    assert usage.reasoning_tokens == 4


def failing(kind: FailureKind, **how: Any) -> Script:
    return Script((Rule((Reply(text="one two three", fail=Failure(kind=kind, **how)),)),))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("rate_limited", "model_rate_limited", True),
        ("unavailable", "model_unavailable", True),
        ("overloaded", "model_unavailable", True),
        ("unauthorized", "model_unauthorized", False),
        ("refused", "model_refused", False),
        ("too_large", "model_refused", False),
        ("context_exceeded", "model_context_exceeded", False),
        ("malformed", "model_garbage", True),
        ("cut", "model_cut", True),
        ("error_event", "model_unavailable", True),
    ],
)
async def test_failure_of_the_responses_is_read(kind: FailureKind, code: str, retryable: bool, stream: bool) -> None:
    script = failing(kind, after=1, retry_after=7, window=9_000)
    async with ModelServer(script) as server, model_at(server.url, WIRES["responses"]()) as model:
        chunks, error = await failed_answer_of(model, asking(stream=stream))
    assert (error.code, error.retryable) == (code, retryable)
    assert error.window == (9_000 if kind == "context_exceeded" else None)
    if kind == "rate_limited":
        assert error.retry_after_seconds == 7
    if stream and kind in ("malformed", "cut", "error_event"):
        assert text_of(chunks) == "one"


async def test_silence_of_the_responses_is_a_timeout() -> None:
    async with ModelServer(failing("hang", after=1)) as server:
        wire, patience = WIRES["responses"](), ModelPatience(silence_seconds=0.05)
        async with HttpModel(wire, base_url=server.url, name="m", patience=patience) as model:
            chunks, error = await failed_answer_of(model, asking())
    assert error.code == "model_timeout"
    assert text_of(chunks) == "one"


@pytest.mark.parametrize("wire", ["responses", "chat"])
async def test_call_beyond_the_window_names_the_window(wire: str) -> None:
    async with ModelServer(thirty_steps(), window=500) as server, model_at(server.url, WIRES[wire]()) as model:
        _, error = await failed_answer_of(model, asking("x" * 4_000))
    assert (error.code, error.window, error.retryable) == ("model_context_exceeded", 500, False)


@pytest.mark.parametrize(("finish", "expected"), [("length", "length"), ("content_filter", "content_filter")])
async def test_incomplete_answer_says_why(finish: Any, expected: str) -> None:
    script = Script((Rule((Reply(text="one", finish=finish),)),))
    async with ModelServer(script) as server, model_at(server.url, WIRES["responses"]()) as model:
        for stream in (True, False):
            chunks: list[Chunk] = await answer_of(model, asking(stream=stream))
            assert (text_of(chunks), finish_of(chunks)) == ("one", expected)
