"""The scripted server's chat completions: what the official client reads from them, and what they refuse."""

import json
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer

pytestmark = pytest.mark.anyio

LOOK = Reply(reasoning="Let me see it. ", text="I look.", tool_calls=(ScriptedCall("view", {"path": "a"}),))
SCRIPT = Script((Rule((LOOK, LOOK, Reply(reasoning="So be it. ", text="It says: {last_tool_result}"))),))
TOOL: Any = {"type": "function", "function": {"name": "view", "parameters": {"type": "object"}}}
USER: Any = {"role": "user", "content": "hello"}


def client_of(server: ModelServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)


async def test_official_client_holds_a_conversation_with_tools_and_returns_the_reasoning() -> None:
    said: list[Any] = [{"role": "system", "content": "Be brief."}, USER]
    answers = []
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        for step in range(3):
            answer = await client.chat.completions.create(model="m", messages=said, tools=[TOOL])
            message = answer.choices[0].message
            answers.append(answer)
            said.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                assert isinstance(call, ChatCompletionMessageFunctionToolCall)
                assert json.loads(call.function.arguments) == {"path": "a"}
                said.append({"role": "tool", "tool_call_id": call.id, "content": f"text {step}"})
            assert message.model_extra is not None
            assert message.model_extra["reasoning_details"][0]["signature"]
    assert answers[-1].choices[0].message.content == "It says: text 1"
    usage = answers[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens


async def test_official_client_reads_a_stream() -> None:
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    called = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in called if call.function) == '{"path":"a"}'
    details = [entry for delta in deltas for entry in (delta.model_extra or {}).get("reasoning_details", ())]
    assert "".join(entry["text"] for entry in details) == "Let me see it. "
    assert ["signature" in entry for entry in details] == [False] * (len(details) - 1) + [True]
    assert chunks[-1].usage is not None


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("rate_limited", openai.RateLimitError),
        ("unavailable", openai.InternalServerError),
        ("unauthorized", openai.AuthenticationError),
        ("refused", openai.BadRequestError),
        ("context_exceeded", openai.BadRequestError),
    ],
)
async def test_official_client_reads_each_refusal(kind: FailureKind, error: type[Exception]) -> None:
    script = Script((Rule((Reply(fail=Failure(kind=kind)),)),))
    async with ModelServer(script) as server, client_of(server) as client:
        with pytest.raises(error):
            await client.chat.completions.create(model="m", messages=[USER])


async def test_official_client_reads_a_failure_in_mid_stream() -> None:
    script = Script((Rule((Reply(text="one two", fail=Failure(kind="error_event", after=1)),)),))
    async with ModelServer(script) as server, client_of(server) as client:
        stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="overloaded"):
            [chunk async for chunk in stream]


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "view", "arguments": "{}"}}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "r"}


async def refusal(*messages: dict[str, Any], model: str = "m") -> tuple[int, str]:
    async with ModelServer(SCRIPT) as server, aiohttp.ClientSession() as client:
        body = {"model": model, "messages": messages}
        response = await client.post(f"{server.url}/chat/completions", json=body)
        status, answer = response.status, await response.json()
    return status, answer.get("error", {}).get("message", "")


CALLED = {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]}


async def test_results_may_come_in_any_order() -> None:
    assert (await refusal(USER, CALLED, result("b"), result("a")))[0] == 200


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, result("a")], "Messages with role 'tool' must be a response"),
        ([CALLED, result("a")], "must be followed by tool messages responding to each 'tool_call_id': 'b' has none"),
        ([CALLED, result("a"), USER, result("b")], "'b' has none"),
        ([CALLED, result("a"), result("a")], "Messages with role 'tool' must be a response"),
        ([{**CALLED, "tool_calls": [call("a"), call("a")]}, result("a")], "Invalid id of a tool call: 'a'"),
        ([{**CALLED, "tool_calls": [call("x" * 41)]}, result("x" * 41)], "Invalid id of a tool call"),
        ([{**CALLED, "tool_calls": [call("a b")]}, result("a b")], "Invalid id of a tool call"),
    ],
)
async def test_calls_and_results_that_do_not_pair_are_refused(messages: list[dict[str, Any]], words: str) -> None:
    status, message = await refusal(*messages)
    assert status == 400
    assert words in message


async def first_answer() -> dict[str, Any]:
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        answer = await client.chat.completions.create(model="m", messages=[USER])
    return answer.choices[0].message.model_dump(exclude_none=True)


async def test_reasoning_is_accepted_unmodified_with_its_message_by_any_server() -> None:
    said = await first_answer()
    assert (await refusal(USER, said, result(said["tool_calls"][0]["id"])))[0] == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content": "I looked."}, "reasoning_details[0] was changed"),
        ({"reasoning_content": "Hm."}, "'messages[1].reasoning_content': it was changed"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "a"}]}, "is not an entry that was sent"),
        ({"reasoning_details": ["x"]}, "is not an entry that was sent"),
    ],
)
async def test_modified_reasoning_is_refused(change: dict[str, Any], words: str) -> None:
    said = await first_answer()
    status, message = await refusal(USER, {**said, **change}, result(said["tool_calls"][0]["id"]))
    assert status == 400
    assert words in message


@pytest.mark.parametrize("field", ["text", "signature", "index", "format"])
async def test_modified_entry_of_the_reasoning_is_refused(field: str) -> None:
    said = await first_answer()
    (entry,) = said["reasoning_details"]
    changed = {**entry, field: 7 if field == "index" else "x"}
    status, _ = await refusal(USER, {**said, "reasoning_details": [changed]}, result(said["tool_calls"][0]["id"]))
    assert status == 400


async def test_reasoning_of_another_model_is_refused() -> None:
    said = await first_answer()
    status, message = await refusal(USER, said, result(said["tool_calls"][0]["id"]), model="other")
    assert status == 400
    assert "sent to another model" in message
