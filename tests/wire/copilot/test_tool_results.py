"""Results of client tools, and their effect."""

from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import HandlePendingToolCallRequest
from copilot.session_events import ExternalToolRequestedData, ToolExecutionCompleteData
from copilot.tools import Tool, ToolBinaryResult, ToolInvocation, ToolResult

from tests.wire.copilot.harness import (
    Heard,
    Model,
    approving,
    ask,
    calls,
    client_tool,
    history,
    reply_to,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def gives(result: ToolResult, name: str = "give") -> Tool:
    return client_tool(name, lambda arguments: result)


async def test_should_handle_structured_toolresultobject_from_custom_tool(client: CopilotClient, model: Model) -> None:
    model.on("Weather in Paris", calls("give", value="Paris"), says("{last_tool_result}"))
    result = ToolResult(text_result_for_llm="Sunny, 72°F", result_type="success")
    session = await client.create_session(**approving(tools=[gives(result)]))
    assert await reply_to(session, "Weather in Paris") == "Sunny, 72°F"
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is True
    assert done.result is not None
    assert done.result.content == "Sunny, 72°F"


async def test_should_handle_tool_result_with_failure_resulttype(client: CopilotClient, model: Model) -> None:
    model.on("Check the status", calls("give", value="x"), says("It is down."))
    result = ToolResult(text_result_for_llm="Service unavailable", result_type="failure", error="API timeout")
    session = await client.create_session(**approving(tools=[gives(result)]))
    await reply_to(session, "Check the status")
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False
    assert done.error is not None
    assert tool_results(model.last_call_about("Check the status")) == ["Service unavailable"]


@pytest.mark.parametrize("kind", ["rejected", "denied"])
async def test_denied_or_rejected_result_is_no_success(client: CopilotClient, model: Model, kind: Any) -> None:
    model.on(f"Try it, {kind}", calls("give", value="x"), says("No."))
    result = ToolResult(text_result_for_llm="Not today", result_type=kind)
    session = await client.create_session(**approving(tools=[gives(result)]))
    await reply_to(session, f"Try it, {kind}")
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False
    assert tool_results(model.last_call_about(f"Try it, {kind}")) == ["Not today"]


async def test_should_preserve_tooltelemetry_and_not_stringify_structured_results_for_llm(
    client: CopilotClient, model: Model
) -> None:
    model.on("Analyse main.ts", calls("give", value="main.ts"), says("{last_tool_result}"))
    result = ToolResult(
        text_result_for_llm="Analysis of main.ts: no issues found", tool_telemetry={"metrics": {"analysisTimeMs": 150}}
    )
    session = await client.create_session(**approving(tools=[gives(result)]))
    assert await reply_to(session, "Analyse main.ts") == "Analysis of main.ts: no issues found"
    (told,) = tool_results(model.last_call_about("Analyse main.ts"))
    assert "toolTelemetry" not in told
    assert "textResultForLlm" not in told


async def test_an_image_reaches_the_model_as_an_image(client: CopilotClient, model: Model) -> None:
    model.on("Show me the picture", calls("give", value="x"), says("Seen."))
    picture = ToolBinaryResult(data=PIXEL, mime_type="image/png", type="image", description="a pixel")
    result = ToolResult(text_result_for_llm="Here it is", binary_results_for_llm=[picture])
    session = await client.create_session(**approving(tools=[gives(result)]))
    await reply_to(session, "Show me the picture")
    parts = [
        part
        for message in model.last_call_about("Show me the picture")["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    assert any(part["type"] == "image_url" and PIXEL in part["image_url"]["url"] for part in parts)


async def test_a_result_may_be_a_plain_string(client: CopilotClient, model: Model) -> None:
    model.on("Only a string", calls("stringly", value="x"), says("{last_tool_result}"))
    heard = Heard()
    session = await client.create_session(
        **approving(tools=[Tool("stringly", "Declared, and answered by id")], on_event=heard)
    )
    await session.send("Only a string")
    asked = await heard.until(ExternalToolRequestedData)
    given = HandlePendingToolCallRequest(request_id=asked.request_id, result="JUST_THIS")
    assert (await session.rpc.tools.handle_pending_tool_call(given)).success is True
    await heard.until_idle()
    assert tool_results(model.last_call_about("Only a string")) == ["JUST_THIS"]


async def test_model_gets_an_error_with_the_tools_name_and_arguments(client: CopilotClient, model: Model) -> None:
    model.on("Fail by id", calls("failing", value="x"), says("I see."))
    heard = Heard()
    session = await client.create_session(**approving(tools=[Tool("failing", "Fails")], on_event=heard))
    await session.send("Fail by id")
    asked = await heard.until(ExternalToolRequestedData)
    given = HandlePendingToolCallRequest(request_id=asked.request_id, error="out of paper")
    assert (await session.rpc.tools.handle_pending_tool_call(given)).success is True
    await heard.until_idle()
    (told,) = tool_results(model.last_call_about("Fail by id"))
    expected = 'Failed to execute `failing` tool with arguments: {"value":"x"} due to error: Error: out of paper'
    assert told == expected


async def test_tool_without_a_result_is_a_failure_with_a_sentence(client: CopilotClient, model: Model) -> None:
    model.on("Return nothing", calls("nothing", value="x"), says("Nothing came."))

    def handler(invocation: ToolInvocation) -> Any:
        return None

    session = await client.create_session(**approving(tools=[Tool("nothing", "", handler)]))
    await reply_to(session, "Return nothing")
    assert tool_results(model.last_call_about("Return nothing")) == ["Tool returned no result."]


@pytest.mark.parametrize(
    "result",
    [
        pytest.param("", id="empty"),
        pytest.param("line\u2028separator \u0000 NUL", id="odd characters"),
        pytest.param("\U0001d518\U0001f389" * 50, id="beyond the plane"),
    ],
)
async def test_any_text_reaches_the_model_whole(client: CopilotClient, model: Model, result: str) -> None:
    prompt = f"Give back {len(result)} characters"
    model.on(prompt, calls("give", value="x"), says("Given."))
    session = await client.create_session(**approving(tools=[gives(ToolResult(text_result_for_llm=result))]))
    await reply_to(session, prompt)
    assert tool_results(model.last_call_about(prompt)) == [result]
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.result is not None
    assert done.result.content == result


async def test_huge_result_is_whole_in_the_history_and_cut_for_the_model(client: CopilotClient, model: Model) -> None:
    model.on("Give back a lot", calls("give", value="x"), says("Much."))
    whole = "0123456789" * 200_000
    session = await client.create_session(**approving(tools=[gives(ToolResult(text_result_for_llm=whole))]))
    await reply_to(session, "Give back a lot")
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.result is not None
    assert (done.result.detailed_content or done.result.content) == whole
    (told,) = tool_results(model.last_call_about("Give back a lot"))
    assert len(told) < 200_000


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"requestId": 7, "result": "x"}, id="an id that is no string"),
        pytest.param({"result": "x"}, id="no id"),
        pytest.param({"requestId": "r", "result": {"textResultForLlm": 5}}, id="a text that is no string"),
        pytest.param({"requestId": "r", "result": {"resultType": "excellent"}}, id="a kind that there is not"),
    ],
)
async def test_nonsensical_answer_is_refused_with_a_clear_error(client: CopilotClient, bad: dict[str, Any]) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await ask(session, "session.tools.handlePendingToolCall", **bad)
