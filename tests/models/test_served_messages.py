"""The scripted server in the protocol of Anthropic's Messages, read by Anthropic's own client, unmodified."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer

pytestmark = pytest.mark.anyio

THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
MARK: Any = {"type": "ephemeral"}


def only(*replies: Reply) -> Script:
    return Script((Rule(replies),))


@asynccontextmanager
async def served(script: Script, **options: Any) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, ModelServer]]:
    async with (
        ModelServer(script, **options) as server,
        anthropic.AsyncAnthropic(base_url=server.url.removesuffix("/v1"), api_key="k", max_retries=0) as client,
    ):
        yield client, server


async def ask(client: anthropic.AsyncAnthropic, messages: Any = HI, *, stream: bool = True, **more: Any) -> Message:
    settings = {"model": "claude-opus-4-5", "max_tokens": 4096, **more}
    if not stream:
        message: Message = await client.messages.create(messages=messages, **settings)
        return message
    async with client.messages.stream(messages=messages, **settings) as answer:
        streamed: Message = await answer.get_final_message()
        return streamed


async def refusal(client: anthropic.AsyncAnthropic, messages: Any = HI, **more: Any) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as caught:
        await ask(client, messages, **more)
    return caught.value


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


RICH = Reply(
    reasoning="Let me think.",
    redacted="hidden",
    text="one two",
    tool_calls=(ScriptedCall("look", {"at": [1, 2.5, "ö"]}), ScriptedCall("look")),
    more=(Reply(reasoning="And again.", text="three", tool_calls=(ScriptedCall("look", {"at": 3}),)),),
)


@pytest.mark.parametrize("stream", [True, False])
async def test_every_kind_of_block_arrives_in_order(stream: bool) -> None:
    async with served(only(RICH)) as (client, _):
        message = await ask(client, stream=stream)
    kinds = ["thinking", "redacted_thinking", "text", "tool_use", "tool_use", "thinking", "text", "tool_use"]
    assert [block.type for block in message.content] == kinds
    assert text_of(message) == "one twothree"
    assert [block.input for block in message.content if isinstance(block, ToolUseBlock)] == [
        {"at": [1, 2.5, "ö"]},
        {},
        {"at": 3},
    ]
    assert [block.thinking for block in message.content if isinstance(block, ThinkingBlock)] == [
        "Let me think.",
        "And again.",
    ]
    assert message.stop_reason == "tool_use"


async def test_streamed_answer_is_the_same_as_the_whole_one() -> None:
    async with served(only(RICH)) as (client, _):
        whole, streamed = await ask(client, stream=False), await ask(client)
    assert [block.to_dict() for block in whole.content] == [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"}
        for block in streamed.content
    ]
    assert whole.stop_reason == streamed.stop_reason


async def test_text_arrives_piece_by_piece() -> None:
    async with served(only(Reply(text="one two three"))) as (client, _):
        settings: Any = {"model": "claude-opus-4-5", "max_tokens": 100, "messages": HI}
        async with client.messages.stream(**settings) as answer:
            assert [piece async for piece in answer.text_stream] == ["one", " two", " three"]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (None, "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("other", "stop_sequence"),
    ],
)
async def test_reason_of_the_end_is_told(finish: Any, reason: str) -> None:
    async with served(only(Reply(text="well", finish=finish))) as (client, _):
        assert (await ask(client)).stop_reason == reason
        assert (await ask(client, stream=False)).stop_reason == reason


def results(message: Message) -> dict[str, Any]:
    uses = [block for block in message.content if isinstance(block, ToolUseBlock)]
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": use.id, "content": f"saw {use.name}"} for use in uses],
    }


async def test_thinking_goes_back_with_its_signature_over_several_steps() -> None:
    steps = [
        Reply(reasoning=f"Thought {n}.", redacted="x", text=f"Step {n}.", tool_calls=(ScriptedCall("look"),))
        for n in range(4)
    ]
    async with served(only(*steps, Reply(text="Done: {last_tool_result}"))) as (client, _):
        messages: list[Any] = list(HI)
        for step in range(4):
            message = await ask(client, messages, tools=[TOOL], thinking=THINKING)
            assert text_of(message) == f"Step {step}."
            messages += [message.to_param(), results(message)]
        assert text_of(await ask(client, messages, tools=[TOOL], thinking=THINKING)) == "Done: saw look"


async def test_call_without_thinking_gets_none() -> None:
    async with served(only(RICH)) as (client, _):
        message = await ask(client, thinking={"type": "disabled"})
        assert "thinking" not in {block.type for block in message.content}


async def tool_step(client: anthropic.AsyncAnthropic) -> list[Any]:
    message = await ask(client, tools=[TOOL], thinking=THINKING)
    return [*HI, {"role": "assistant", "content": [block.to_dict() for block in message.content]}, results(message)]


THINKS = Reply(reasoning="Let me think.", redacted="hidden", text="Hm.", tool_calls=(ScriptedCall("look"),))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda blocks: blocks[0].update(thinking="Let me cheat."), "Invalid `signature`"),
        (lambda blocks: blocks[0].update(signature="AAAA"), "Invalid `signature`"),
        (lambda blocks: blocks[0].pop("signature"), "signature: Field required"),
        (lambda blocks: blocks[1].update(data="AAAA"), "Invalid `data`"),
        (lambda blocks: (blocks.pop(0), blocks.pop(0)), "Expected `thinking` or `redacted_thinking`"),
        (lambda blocks: blocks.insert(0, blocks.pop(2)), "Expected `thinking` or `redacted_thinking`"),
        (lambda blocks: blocks[0].update(cache_control=MARK), "cache_control cannot be set"),
    ],
)
async def test_thinking_that_does_not_come_back_as_it_was_is_refused(change: Any, said: str) -> None:
    async with served(only(THINKS, Reply(text="fine"))) as (client, _):
        messages = await tool_step(client)
        assert text_of(await ask(client, messages, thinking=THINKING)) == "fine"
        change(messages[1]["content"])
        error = await refusal(client, messages, thinking=THINKING)
    assert isinstance(error, anthropic.BadRequestError)
    assert error.type == "invalid_request_error"
    assert said in (error.api_message or "")


USE: Any = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "a", "content": "seen"}
PNG: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}


def text(words: str, **more: Any) -> Any:
    return {"type": "text", "text": words, **more}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize(
    ("messages", "more", "said"),
    [
        ([], {}, "at least one message"),
        ([assistant(text("hi"))], {}, "first message must use the user role"),
        ([{"role": "tool", "content": "hi"}], {}, "role"),
        ([user()], {}, "non-empty content"),
        ([user(text(""))], {}, "must be non-empty"),
        ([user(text(" \n"))], {}, "non-whitespace"),
        ([user({"type": "sound"})], {}, "Input tag 'sound'"),
        ([user(USE)], {}, "Input tag 'tool_use'"),
        ([user(text("a")), assistant(USE), user(text("b"))], {}, "without `tool_result` blocks immediately after"),
        ([user(text("a")), assistant(USE), user(text("b"), RESULT)], {}, "immediately after"),
        ([user(text("a")), assistant(USE), user(RESULT, RESULT)], {}, "a single result"),
        ([user(text("a")), assistant(text("b")), user(RESULT)], {}, "unexpected `tool_use_id`"),
        ([user(RESULT)], {}, "unexpected `tool_use_id`"),
        ([user(text("a")), assistant(USE)], {}, "without `tool_result` blocks"),
        ([user(text("a")), assistant(USE, USE), user(RESULT)], {}, "ids must be unique"),
        ([user(text("a")), assistant({**USE, "id": "a.b"}), user({**RESULT, "tool_use_id": "a.b"})], {}, "pattern"),
        ([user(text("a")), assistant({**USE, "input": "x"}), user(RESULT)], {}, "Input should be an object"),
        ([user({**PNG, "source": {**PNG["source"], "media_type": "image/bmp"}})], {}, "media_type"),
        ([user({**PNG, "source": {**PNG["source"], "data": "%"}})], {}, "invalid base64"),
        ([user(*(text("a", cache_control=MARK) for _ in range(5)))], {}, "A maximum of 4 blocks"),
        ([user(text("a", cache_control={"type": "forever"}))], {}, "ephemeral"),
        (HI, {"thinking": {"type": "enabled", "budget_tokens": 4096}}, "must be greater than"),
        (HI, {"thinking": {"type": "enabled", "budget_tokens": 100}}, "greater than or equal to 1024"),
        (HI, {"max_tokens": 0}, "max_tokens"),
        (HI, {"tools": [TOOL, TOOL]}, "must be unique"),
        (HI, {"tools": [{**TOOL, "name": "a b"}]}, "pattern"),
        (HI, {"tools": [{"name": "a", "input_schema": {}}]}, "Input should be 'object'"),
        (HI, {"system": [text("")]}, "must be non-empty"),
        (HI, {"extra_body": {"reasoning_effort": "low"}}, "reasoning_effort"),
        ([*HI, assistant(text("an answer that never was"))], {}, "did not pause there"),
    ],
)
async def test_what_the_real_api_refuses_is_refused(messages: Any, more: Any, said: str) -> None:
    async with served(only(Reply(text="fine"))) as (client, server):
        error = await refusal(client, messages, **more)
        assert isinstance(error, anthropic.BadRequestError)
        assert said in (error.api_message or "")
        assert len(server.counts) == 0


async def test_what_the_real_api_takes_is_answered() -> None:
    messages = [
        user(text("a", cache_control=MARK), PNG),
        user(text("b")),
        assistant(text("c"), USE),
        user({**RESULT, "content": [text("seen"), PNG], "cache_control": MARK}, text("and?")),
    ]
    more: Any = {"tools": [{**TOOL, "cache_control": MARK}], "system": [text("Be brief.", cache_control=MARK)]}
    async with served(only(Reply(text="to {user}"))) as (client, _):
        assert text_of(await ask(client, messages, **more)) == "to and?"


async def test_version_and_key_are_required() -> None:
    async with served(only(Reply(text="fine")), api_key="k") as (client, server):
        assert text_of(await ask(client)) == "fine"
        assert text_of(await ask(client, extra_headers={"Authorization": anthropic.Omit(), "x-api-key": "k"})) == "fine"
        wrong = await refusal(client.with_options(api_key="wrong"))
        assert isinstance(wrong, anthropic.AuthenticationError)
        assert len(server.requests) == 2
        error = await refusal(client, extra_headers={"anthropic-version": anthropic.Omit()})
        assert "anthropic-version" in (error.api_message or "")


@pytest.mark.parametrize(
    ("kind", "error", "type"),
    [
        ("rate_limited", anthropic.RateLimitError, "rate_limit_error"),
        ("overloaded", anthropic.OverloadedError, "overloaded_error"),
        ("unavailable", anthropic.InternalServerError, "api_error"),
        ("unauthorized", anthropic.AuthenticationError, "authentication_error"),
        ("refused", anthropic.BadRequestError, "invalid_request_error"),
        ("too_large", anthropic.ContentTooLargeError, "invalid_request_error"),
        ("context_exceeded", anthropic.BadRequestError, "invalid_request_error"),
    ],
)
async def test_scripted_failure_is_the_error_that_the_client_knows(
    kind: FailureKind, error: type[Exception], type: str
) -> None:
    script = only(Reply(text="fine", fail=Failure(kind=kind, times=1, retry_after=2.0)))
    async with served(script) as (client, _):
        refused = await refusal(client)
        assert isinstance(refused, error)
        assert refused.type == type
        assert refused.response.headers.get("retry-after") == ("2" if kind in ("rate_limited", "overloaded") else None)
        assert text_of(await ask(client)) == "fine"


async def test_error_in_mid_stream_reaches_the_client() -> None:
    async with served(only(Reply(text="one two", fail=Failure(kind="error_event", after=1)))) as (client, _):
        error = await refusal(client)
        assert error.type == "overloaded_error"
        assert error.status_code == 200
        assert isinstance(await refusal(client, stream=False), anthropic.OverloadedError)


@pytest.mark.parametrize(("kind", "error"), [("cut", httpx2.RemoteProtocolError), ("malformed", ValueError)])
async def test_broken_stream_is_an_error(kind: FailureKind, error: type[Exception]) -> None:
    async with served(only(Reply(text="one two", fail=Failure(kind=kind, after=1)))) as (client, _):
        with pytest.raises(error):
            await ask(client)


async def test_paused_answer_goes_on_when_what_came_is_sent_back() -> None:
    script = only(Reply(reasoning="Hm.", text="one two three four", pauses=(2, 4)))
    async with served(script) as (client, server):
        messages, said = list(HI), []
        while (message := await ask(client, messages)).stop_reason == "pause_turn":
            said.append(text_of(message))
            merged = [*messages[1]["content"], *message.content] if messages[1:] else message.content
            messages = [*HI, {"role": "assistant", "content": merged}]
        assert [*said, text_of(message)] == ["one", " two three", " four"]
        assert message.stop_reason == "end_turn"
        assert len(server.requests) == 3


async def test_call_beyond_the_window_is_refused_with_the_window() -> None:
    async with served(only(Reply(text="fine")), window=100) as (client, _):
        error = await refusal(client, [user(text("x" * 1000))], max_tokens=20)
        assert isinstance(error, anthropic.BadRequestError)
        assert "prompt is too long: " in (error.api_message or "")
        assert " tokens > 100 maximum" in (error.api_message or "")
        assert text_of(await ask(client, max_tokens=20)) == "fine"


async def test_longest_answer_has_to_fit_into_the_window_as_well() -> None:
    async with served(only(Reply(text="fine")), window=100) as (client, _):
        error = await refusal(client, max_tokens=100)
        assert "input length and `max_tokens` exceed context limit: " in (error.api_message or "")
        assert " + 100 > 100" in (error.api_message or "")


LONG = "x" * 4000


async def test_usage_tells_what_the_cache_read_and_wrote() -> None:
    system = [text(LONG, cache_control=MARK)]
    async with served(only(Reply(text="fine"))) as (client, _):
        first = (await ask(client, [user(text(LONG, cache_control=MARK))], system=system)).usage
        assert first.cache_read_input_tokens == 0
        assert (first.cache_creation_input_tokens or 0) > 2000
        assert first.input_tokens == 0
        longer = [user(text(LONG)), assistant(text("fine")), user(text("more", cache_control=MARK))]
        second = (await ask(client, longer, system=system, stream=False)).usage
        assert second.cache_read_input_tokens == first.cache_creation_input_tokens
        assert 0 < (second.cache_creation_input_tokens or 0) < 50


async def test_nothing_is_cached_without_marks() -> None:
    async with served(only(Reply(text="fine"))) as (client, _):
        for _ in range(2):
            usage = (await ask(client, [user(text(LONG))], system=LONG)).usage
            assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)
            assert usage.input_tokens > 2000


async def test_change_of_thinking_parts_the_messages_and_not_the_system_text() -> None:
    system = [text(LONG, cache_control=MARK)]
    asked = [user(text(LONG, cache_control=MARK))]
    async with served(only(Reply(text="fine"))) as (client, _):
        whole = (await ask(client, asked, system=system)).usage.cache_creation_input_tokens or 0
        usage = (await ask(client, asked, system=system, thinking=THINKING)).usage
        assert 1000 <= (usage.cache_read_input_tokens or 0) < whole - 1000


async def test_usage_of_the_script_is_told_as_it_is() -> None:
    usage = TokenUsage(
        input_tokens=100, output_tokens=7, cache_read_tokens=60, cache_write_tokens=30, reasoning_tokens=2
    )
    async with served(only(Reply(text="fine", usage=usage))) as (client, _):
        for stream in (True, False):
            told = (await ask(client, stream=stream)).usage
            assert (told.input_tokens, told.cache_read_input_tokens, told.cache_creation_input_tokens) == (10, 60, 30)
            assert told.output_tokens == 7
            assert told.output_tokens_details is not None
            assert told.output_tokens_details.thinking_tokens == 2
