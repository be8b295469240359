"""The scripted server's Responses: what the official client reads from them, and what they refuse."""

import json
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer

pytestmark = pytest.mark.anyio

LOOK = Reply(reasoning="Let me see it. ", text="I look.", tool_calls=(ScriptedCall("view", {"path": "a"}),))
SCRIPT = Script((Rule((LOOK, LOOK, Reply(reasoning="So be it. ", text="It says: {last_tool_result}"))),))
TOOL: Any = {"type": "function", "name": "view", "parameters": {"type": "object"}, "strict": False}
INCLUDE: Any = ["reasoning.encrypted_content"]
ASK: dict[str, Any] = {"model": "gpt-6", "input": [{"role": "user", "content": "hello"}]}


def client_of(server: ModelServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)


async def streamed(client: openai.AsyncOpenAI, **call: Any) -> tuple[list[Any], Response]:
    """The events of a streamed answer, and its final response."""
    stream = await client.responses.create(**call, stream=True)
    events: list[Any] = [event async for event in stream]
    return events, events[-1].response


async def answered(client: openai.AsyncOpenAI, stream: bool, **call: Any) -> Response:
    if stream:
        return (await streamed(client, **call))[1]
    response: Response = await client.responses.create(**call)
    return response


@pytest.mark.parametrize("stream", [True, False])
async def test_official_client_holds_a_conversation_with_tools_and_encrypted_reasoning(stream: bool) -> None:
    said: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is in a?"}]
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        responses = []
        for step in range(3):
            response = await answered(
                client, stream, model="gpt-6", input=said, tools=[TOOL], store=False, include=INCLUDE
            )
            responses.append(response)
            assert response.status == "completed"
            said += [item.model_dump(exclude_none=True) for item in response.output]
            for item in response.output:
                if isinstance(item, ResponseFunctionToolCall):
                    assert json.loads(item.arguments) == {"path": "a"}
                    said.append({"type": "function_call_output", "call_id": item.call_id, "output": f"text {step}"})
            assert isinstance(response.output[0], ResponseReasoningItem)
            assert response.output[0].encrypted_content
            assert response.output[0].summary[0].text
    assert responses[-1].output_text == "It says: text 1"
    usage = responses[-1].usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens > 0
    assert usage.output_tokens_details.reasoning_tokens == 3


async def test_every_event_of_a_stream_has_the_type_that_the_official_client_knows() -> None:
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        events, response = await streamed(client, **ASK, include=INCLUDE)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {type(event).__name__ for event in events} == {
        *("ResponseCreatedEvent", "ResponseInProgressEvent", "ResponseCompletedEvent"),
        *("ResponseOutputItemAddedEvent", "ResponseOutputItemDoneEvent"),
        *("ResponseReasoningSummaryPartAddedEvent", "ResponseReasoningSummaryPartDoneEvent"),
        *("ResponseReasoningSummaryTextDeltaEvent", "ResponseReasoningSummaryTextDoneEvent"),
        *("ResponseContentPartAddedEvent", "ResponseContentPartDoneEvent"),
        *("ResponseTextDeltaEvent", "ResponseTextDoneEvent"),
        *("ResponseFunctionCallArgumentsDeltaEvent", "ResponseFunctionCallArgumentsDoneEvent"),
    }
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == response.output
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == response.output_text == "I look."


async def test_reasoning_is_encrypted_only_on_request() -> None:
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        response = await client.responses.create(**ASK)
    assert isinstance(response.output[0], ResponseReasoningItem)
    assert response.output[0].encrypted_content is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_answer_that_ends_early_is_incomplete(stream: bool, finish: Any, reason: str) -> None:
    script = Script((Rule((Reply(text="one two", finish=finish),)),))
    async with ModelServer(script) as server, client_of(server) as client:
        response = await answered(client, stream, **ASK)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == reason
    assert response.output_text == "one two"


async def test_scripted_usage_is_reported() -> None:
    usage = TokenUsage(input_tokens=9, output_tokens=5, cache_read_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
    async with ModelServer(Script((Rule((Reply(text="a", usage=usage),)),))) as server, client_of(server) as client:
        read = (await client.responses.create(**ASK)).usage
    assert read is not None
    assert (read.input_tokens, read.output_tokens, read.total_tokens) == (9, 5, 14)
    assert (read.input_tokens_details.cached_tokens, read.input_tokens_details.cache_write_tokens) == (4, 3)
    assert read.output_tokens_details.reasoning_tokens == 2


def failing(kind: FailureKind, **how: Any) -> Script:
    return Script((Rule((Reply(text="one two three", fail=Failure(kind=kind, **how)),)),))


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("rate_limited", openai.RateLimitError, "rate_limit_exceeded"),
        ("unavailable", openai.InternalServerError, "server_error"),
        ("overloaded", openai.InternalServerError, "server_is_overloaded"),
        ("unauthorized", openai.AuthenticationError, "invalid_api_key"),
        ("refused", openai.BadRequestError, None),
        ("context_exceeded", openai.BadRequestError, "context_length_exceeded"),
    ],
)
async def test_official_client_reads_each_refusal(
    kind: FailureKind, error: type[openai.APIStatusError], code: str | None
) -> None:
    async with ModelServer(failing(kind, retry_after=7, window=9_000)) as server, client_of(server) as client:
        with pytest.raises(error) as raised:
            await client.responses.create(**ASK)
    assert raised.value.code == code
    if kind == "rate_limited":
        assert raised.value.response.headers["retry-after"] == "7"
    if kind == "context_exceeded":
        assert "maximum context length is 9000 tokens" in raised.value.message


async def test_official_client_reads_a_failure_in_mid_stream() -> None:
    async with ModelServer(failing("error_event", after=1)) as server, client_of(server) as client:
        stream = await client.responses.create(**ASK, stream=True)
        events = [event async for event in stream]
    assert [event.type for event in events[-3:]] == ["response.output_text.delta", "error", "response.failed"]
    failed = events[-1]
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.message == "The scripted model is overloaded."


@pytest.mark.parametrize(("kind", "error"), [("malformed", json.JSONDecodeError), ("cut", openai.APIConnectionError)])
async def test_official_client_notices_a_broken_stream(kind: FailureKind, error: type[Exception]) -> None:
    async with ModelServer(failing(kind, after=1)) as server, client_of(server) as client:
        stream = await client.responses.create(**ASK, stream=True)
        with pytest.raises(error):
            [event async for event in stream]


CALL = {"type": "function_call", "call_id": "call_1", "name": "view", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "r"}
USER = {"role": "user", "content": "u"}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}


async def refusal(**call: Any) -> tuple[int, dict[str, Any]]:
    async with ModelServer(SCRIPT) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/responses", json={"model": "gpt-6", "input": [USER], **call})
        status, body = response.status, await response.json()
    return status, body.get("error") or {}


@pytest.mark.parametrize(
    "items",
    [
        "hello",
        [USER, CALL, OUTPUT],
        [USER, {**CALL, "id": "fc_1", "status": "completed"}, {**OUTPUT, "id": None}],
        [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "s"}]}],
        [{"role": "user", "content": [PICTURE, {**PICTURE, "image_url": "https://a.test/b.png", "detail": "low"}]}],
        [USER, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "r"}, PICTURE]}],
        [{"role": "assistant", "content": "a", "phase": "commentary"}],
        [{"role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "a", "annotations": []}]}],
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
    ],
)
async def test_correct_input_is_accepted(items: Any) -> None:
    assert (await refusal(input=items))[0] == 200


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (7, "Invalid 'body'"),
        ([USER, OUTPUT], "No tool call found for function call output with call_id call_1"),
        ([USER, OUTPUT, CALL], "No tool call found"),
        ([USER, CALL], "No tool output found for function call call_1"),
        ([USER, CALL, OUTPUT, OUTPUT], "No tool call found"),
        ([USER, CALL, OUTPUT, CALL, OUTPUT], "Duplicate item found with call_id call_1"),
        ([{**CALL, "id": "fc_1"}, {**OUTPUT, "id": "fc_1"}], "Duplicate item found with id fc_1"),
        ([{"type": "computer_call"}], "Invalid value: 'computer_call'"),
        ([{"type": 5}], "Invalid value: '5'"),
        ([USER, "x"], "Invalid 'input[1]'"),
        ([{**USER, "name": "me"}], "unknown field `name`"),
        ([{**USER, "role": "tool"}], "Invalid 'input[0]'"),
        ([{**USER, "content": None}], "Invalid 'input[0]'"),
        ([{**USER, "content": [{"type": "text", "text": "a"}]}], "Invalid 'input[0]'"),
        ([{**USER, "content": [{"type": "output_text", "text": "a"}]}], "a message of role 'user' can't have it"),
        ([{"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}], "can't have it"),
        ([{**USER, "content": [{**PICTURE, "image_url": "data:image/bmp;base64,AAAA"}]}], "Invalid image"),
        ([{**USER, "content": [{**PICTURE, "image_url": "data:image/png;base64,"}]}], "Invalid image"),
        ([{**CALL, "arguments": {}}], "Invalid 'input[0]'"),
        ([{**CALL, "call_id": ""}], "Invalid 'input[0].call_id'"),
        ([{**CALL, "call_id": "functions.view:0"}], "Invalid 'input[0].call_id'"),
        ([{**CALL, "call_id": "x" * 65}], "Invalid 'input[0].call_id'"),
        ([{**CALL, "name": "a.b"}], "Invalid 'input[0].name'"),
        ([{**CALL, "id": "call_1"}, OUTPUT], "Expected an ID that begins with 'fc_'"),
        ([CALL, {**OUTPUT, "output": {"text": "r"}}], "Invalid 'input[1]'"),
    ],
)
async def test_wrong_input_is_refused(items: Any, words: str) -> None:
    status, error = await refusal(input=items)
    assert status == 400
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "unknown field `messages`"),
        ({"tools": [{"type": "function", "function": {"name": "view"}}]}, "Invalid 'tools[0]'"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "Invalid 'tools[0].name'"),
        ({"tools": [TOOL, TOOL]}, "Invalid 'tools[1].name'"),
        ({"max_output_tokens": 15}, "expected a value >= 16"),
        ({"reasoning": {"effort": "huge"}}, "Invalid 'body'"),
        ({"include": ["everything"]}, "Invalid value in 'include'"),
        ({"prompt_cache_key": "x" * 65}, "at most 64 characters"),
        ({"previous_response_id": "resp_1"}, "Previous response with id 'resp_1' not found"),
        ({"stream": "yes"}, "Invalid 'body'"),
    ],
)
async def test_wrong_field_is_refused(fields: dict[str, Any], words: str) -> None:
    status, error = await refusal(**fields)
    assert status == 400
    assert words in error["message"]


async def first_answer(model: str = "gpt-6") -> list[Any]:
    """The items of a first answer, with the output of its call."""
    async with ModelServer(SCRIPT) as server, client_of(server) as client:
        response = await client.responses.create(model=model, input=[{"role": "user", "content": "u"}], include=INCLUDE)
    items = [item.model_dump(exclude_none=True) for item in response.output]
    return [*items, {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "r"}]


async def test_reasoning_is_accepted_unmodified_at_its_place_by_any_server() -> None:
    items = await first_answer()
    assert await refusal(input=[USER, *items]) == (200, {})
    assert await refusal(input=[USER, *items], include=INCLUDE, store=False) == (200, {})


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"encrypted_content": "gAAAA"}, "invalid_encrypted_content", "could not be verified"),
        ({"id": "rs_other"}, "invalid_encrypted_content", "could not be verified"),
        ({"summary": []}, "invalid_encrypted_content", "could not be verified"),
        ({"encrypted_content": None}, None, "not found. Items are not persisted"),
        ({"extra": 1}, None, "unknown field `extra`"),
    ],
)
async def test_modified_reasoning_is_refused(change: dict[str, Any], code: str | None, words: str) -> None:
    thought, *rest = await first_answer()
    status, error = await refusal(input=[USER, {**thought, **change}, *rest])
    assert status in (400, 404)
    assert (error["code"], words in error["message"]) == (code, True)


async def test_reasoning_of_another_model_is_refused() -> None:
    status, error = await refusal(input=[USER, *await first_answer("gpt-7")])
    assert (status, error["code"]) == (400, "invalid_encrypted_content")


async def test_reasoning_without_the_item_that_followed_it_is_refused() -> None:
    thought, message, call, output = await first_answer()
    for items in (
        [thought, call, output],
        [thought, USER, message, call, output],
        [message, call, output, thought],
        [thought, {**message, "content": [{"type": "output_text", "text": "changed"}]}, call, output],
    ):
        status, error = await refusal(input=[USER, *items])
        assert (status, error["code"]) == (400, None)
        assert "of type 'reasoning' was provided without its required" in error["message"]
