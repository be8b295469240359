"""Client tools: offering, calling and answering them, and their errors."""

import asyncio
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import PermissionDecisionApproveOnce, PermissionDecisionReject
from copilot.session import PermissionRequestResult
from copilot.session_events import (
    ExternalToolCompletedData,
    ExternalToolRequestedData,
    PermissionRequest,
    PermissionRequestCustomTool,
    ToolExecutionCompleteData,
    ToolExecutionStartData,
)
from copilot.tools import Tool, ToolInvocation, ToolResult, define_tool
from pydantic import BaseModel, Field

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Waiting,
    approving,
    calls,
    calls_all,
    calls_raw,
    client_tool,
    history,
    reply_to,
    says,
    tool_names,
    tool_results,
)

pytestmark = pytest.mark.anyio


class EncryptParams(BaseModel):
    input: str = Field(description="String to encrypt")


def encrypt(params: EncryptParams, invocation: ToolInvocation) -> str:
    return params.input.upper()


def encrypt_tool(**more: Any) -> Tool:
    return define_tool("encrypt_string", description="Encrypts a string", handler=encrypt, **more)


async def test_invokes_built_in_tools(client: CopilotClient, home: Home, model: Model) -> None:
    (home.work / "README.md").write_text("# ELIZA, the only chatbot you'll ever need", encoding="utf-8")
    model.on("First line of README.md?", calls("view", path="README.md"), says("{last_tool_result}"))
    session = await client.create_session(**approving())
    assert "1. # ELIZA" in await reply_to(session, "First line of README.md?")


async def test_invokes_custom_tool(client: CopilotClient, model: Model) -> None:
    model.on("Encrypt Hello", calls("encrypt_string", input="Hello"), says("{last_tool_result}"))
    session = await client.create_session(**approving(tools=[encrypt_tool()]))
    assert await reply_to(session, "Encrypt Hello") == "HELLO"


async def test_model_gets_a_tools_name_description_and_schema(client: CopilotClient, model: Model) -> None:
    model.on("Which tools, described?", says("That one."))
    session = await client.create_session(**approving(tools=[encrypt_tool()]))
    await reply_to(session, "Which tools, described?")
    offered = model.last_call_about("described?")["tools"]
    (found,) = [tool["function"] for tool in offered if tool["function"]["name"] == "encrypt_string"]
    assert found["description"] == "Encrypts a string"
    assert found["parameters"]["properties"]["input"]["type"] == "string"
    assert offered[-1]["function"]["name"] == "encrypt_string"


async def test_handler_gets_the_id_of_its_call(client: CopilotClient, model: Model) -> None:
    model.on("Which call?", calls("which_call", value="v"), says("Told."))
    told: list[ToolInvocation] = []

    def handler(invocation: ToolInvocation) -> ToolResult:
        told.append(invocation)
        return ToolResult(text_result_for_llm="ok")

    session = await client.create_session(**approving(tools=[Tool("which_call", "", handler)]))
    await reply_to(session, "Which call?")
    (started,) = await history(session, ToolExecutionStartData)
    (asked,) = await history(session, ExternalToolRequestedData)
    (invocation,) = told
    assert invocation.session_id == session.session_id
    assert invocation.tool_call_id == started.tool_call_id == asked.tool_call_id
    assert invocation.request_id == asked.request_id
    assert (invocation.tool_name, invocation.arguments) == ("which_call", {"value": "v"})


async def test_handles_tool_calling_errors(client: CopilotClient, model: Model) -> None:
    model.on("Where am I?", calls("get_user_location"), says("unknown"))

    @define_tool("get_user_location", description="Gets the user's location")
    def get_user_location() -> str:
        raise RuntimeError("Melbourne")

    session = await client.create_session(**approving(tools=[get_user_location]))
    assert await reply_to(session, "Where am I?") == "unknown"
    (told,) = tool_results(model.last_call_about("Where am I?"))
    assert told == "Failed to execute `get_user_location` tool with arguments: {} due to error: Error: Melbourne"
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False


async def test_can_receive_and_return_complex_types(client: CopilotClient, model: Model) -> None:
    query = {"table": "cities", "ids": [12, 19], "sortAscending": True}
    model.on("Query the cities", calls("db_query", query=query), says("{last_tool_result}"))

    class Query(BaseModel):
        table: str
        ids: list[int]
        sortAscending: bool  # noqa: N815

    class QueryParams(BaseModel):
        query: Query

    class City(BaseModel):
        countryId: int  # noqa: N815
        cityName: str  # noqa: N815
        population: int

    @define_tool("db_query", description="Performs a database query")
    def db_query(params: QueryParams) -> list[City]:
        assert params.query == Query(table="cities", ids=[12, 19], sortAscending=True)
        return [
            City(countryId=19, cityName="Passos", population=135460),
            City(countryId=12, cityName="San Lorenzo", population=204356),
        ]

    session = await client.create_session(**approving(tools=[db_query]))
    said = await reply_to(session, "Query the cities")
    assert "Passos" in said
    assert "204356" in said


async def test_overrides_built_in_tool_with_custom_tool(client: CopilotClient, model: Model) -> None:
    model.on("Use grep to search", calls("grep", value="hello"), says("{last_tool_result}"))
    grep = client_tool("grep", lambda arguments: f"CUSTOM_GREP_{arguments['value']}", overrides_built_in_tool=True)
    session = await client.create_session(**approving(tools=[grep]))
    assert await reply_to(session, "Use grep to search") == "CUSTOM_GREP_hello"
    assert tool_names(model.last_call_about("Use grep to search")).count("grep") == 1


async def test_client_tool_with_a_built_in_name_needs_an_explicit_override(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="grep"):
        await client.create_session(**approving(tools=[client_tool("grep", lambda arguments: "")]))


async def test_invokes_custom_tool_with_permission_handler(client: CopilotClient, model: Model) -> None:
    model.on("Encrypt permitted", calls("encrypt_string", input="Hello"), says("{last_tool_result}"))
    asked: list[PermissionRequest] = []

    def handler(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        asked.append(request)
        return PermissionDecisionApproveOnce()

    session = await client.create_session(on_permission_request=handler, tools=[encrypt_tool()])
    assert await reply_to(session, "Encrypt permitted") == "HELLO"
    (request,) = asked
    assert isinstance(request, PermissionRequestCustomTool)
    assert request.tool_name == "encrypt_string"


async def test_denies_custom_tool_when_permission_denied(client: CopilotClient, model: Model) -> None:
    model.on("Encrypt forbidden", calls("encrypt_string", input="Hello"), says("I may not."))
    invoked: list[EncryptParams] = []

    @define_tool("encrypt_string", description="Encrypts a string")
    def forbidden(params: EncryptParams) -> str:
        invoked.append(params)
        return "x"

    session = await client.create_session(
        on_permission_request=lambda request, invocation: PermissionDecisionReject(), tools=[forbidden]
    )
    await reply_to(session, "Encrypt forbidden")
    assert invoked == []
    assert await history(session, ExternalToolRequestedData) == []


async def test_parallel_calls_run_at_the_same_time_and_complete_in_the_order_of_the_calls(
    client: CopilotClient, model: Model
) -> None:
    both = calls_all(("first", {"value": "1"}), ("second", {"value": "2"}))
    model.on("Both at once", both, says("Both."))
    first, second = Waiting(), Waiting()
    heard = Heard()
    tools = [client_tool("first", first), client_tool("second", second)]
    session = await client.create_session(**approving(tools=tools, on_event=heard))
    await session.send("Both at once")
    await asyncio.gather(first.started(), second.started())
    second.release.set_result("SECOND")
    await heard.until(ExternalToolCompletedData)
    first.release.set_result("FIRST")
    await heard.until_idle()
    assert tool_results(model.last_call_about("Both at once")) == ["FIRST", "SECOND"]


async def test_calls_of_the_same_tool_never_swap_results(client: CopilotClient, model: Model) -> None:
    many = calls_all(*(("same", {"value": str(number)}) for number in range(8)))
    model.on("Eight of the same", many, says("Eight."))
    arrived: list[str] = []
    everyone = asyncio.Event()

    async def handler(arguments: dict[str, Any]) -> str:
        arrived.append(arguments["value"])
        if len(arrived) == 8:
            everyone.set()
        await everyone.wait()
        return f"RESULT_{arguments['value']}"

    session = await client.create_session(**approving(tools=[client_tool("same", handler)]))
    await reply_to(session, "Eight of the same")
    assert tool_results(model.last_call_about("Eight of the same")) == [f"RESULT_{number}" for number in range(8)]


async def test_arguments_return_to_the_model_unchanged(client: CopilotClient, model: Model) -> None:
    raw = '{"zebra": 1,  "apple": {"b": 2, "a": 1}}'
    model.on("Keep the order", calls_raw("ordered", raw), says("Kept."))
    session = await client.create_session(**approving(tools=[client_tool("ordered", lambda arguments: "ok")]))
    await reply_to(session, "Keep the order")
    (sent,) = [m for m in model.last_call_about("Keep the order")["messages"] if m.get("tool_calls")]
    assert sent["tool_calls"][0]["function"]["arguments"] == raw


async def test_invalid_json_arguments_are_an_error_that_the_model_sees(client: CopilotClient, model: Model) -> None:
    model.on("Say nonsense", calls_raw("encrypt_string", '{"input": '), says("Sorry."))
    session = await client.create_session(**approving(tools=[encrypt_tool()]))
    assert await reply_to(session, "Say nonsense") == "Sorry."
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False


async def test_tools_can_be_replaced_in_a_running_session(client: CopilotClient, model: Model) -> None:
    model.on("Which tools now?", says("These."))
    model.on("Use the new one", calls("new_one", value="x"), says("{last_tool_result}"))
    session = await client.create_session(**approving(tools=[client_tool("old_one", lambda arguments: "old")]))
    await reply_to(session, "Which tools now?")
    assert "old_one" in tool_names(model.last_call_about("Which tools now?"))
    await session.set_tools([client_tool("new_one", lambda arguments: "NEW")])
    assert await reply_to(session, "Use the new one") == "NEW"
    offered = tool_names(model.last_call_about("Use the new one"))
    assert "new_one" in offered
    assert "old_one" not in offered


async def test_a_terminal_tool_ends_the_turn(client: CopilotClient, model: Model) -> None:
    model.on("Finish with it", calls("finish", value="x"), says("Never asked for."))
    heard = Heard()
    tool = client_tool("finish", lambda arguments: "finished", is_terminal=True)
    session = await client.create_session(**approving(tools=[tool], on_event=heard))
    await session.send("Finish with it")
    await heard.until_idle()
    assert len(model.calls_about("Finish with it")) == 1


async def test_unanswered_tool_call_is_listed(client: CopilotClient, model: Model) -> None:
    model.on("List it", calls("listed", value="x"), says("{last_tool_result}"))
    waiting = Waiting()
    heard = Heard()
    session = await client.create_session(**approving(tools=[client_tool("listed", waiting)], on_event=heard))
    await session.send("List it")
    asked = await heard.until(ExternalToolRequestedData)
    await waiting.started()
    pending = await session.rpc.tools.list_pending_requests()
    assert [item.request_id for item in pending.items] == [asked.request_id]
    waiting.release.set_result("LISTED")
    await heard.until_idle()
    assert (await session.rpc.tools.list_pending_requests()).items == []
