"""Suspending ends the turn like an abort, and the session can go on."""

import asyncio
from typing import Any

import pytest
from copilot import CopilotClient
from copilot._jsonrpc import JsonRpcError
from copilot.rpc import HandlePendingToolCallRequest, PermissionDecisionApproveOnce, PermissionDecisionRequest
from copilot.session import PermissionNoResult, PermissionRequestResult
from copilot.session_events import (
    ExternalToolRequestedData,
    PermissionCompletedData,
    PermissionRequest,
    PermissionRequestedData,
)

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Waiting,
    approving,
    ask,
    calls,
    client_tool,
    connected,
    history,
    reply_to,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio

INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."


def leaves_it(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionNoResult()


async def test_should_suspend_idle_session_without_throwing(client: CopilotClient, model: Model) -> None:
    model.on("Be idle", says("I am."))
    session = await client.create_session(**approving())
    await reply_to(session, "Be idle")
    assert await ask(session, "session.suspend") is None
    assert await reply_to(session, "Be idle") == "I am."


async def test_stops_that_have_nothing_to_stop_succeed_when_the_owner_s_storage_is_full(
    own_home: Home, model: Model
) -> None:
    model.on("Be idle", says("I am."))
    bounds = {"HOLDFAST_AUTH": "keys", "HOLDFAST_MAX_BYTES_PER_OWNER": "10000"}
    async with own_home.serve(**bounds) as server, connected(server.client()) as client:
        session = await client.create_session(**approving())
        await reply_to(session, "Be idle")
        for _ in range(100):
            await ask(session, "session.name.set", name="y" * 100)
        with pytest.raises(JsonRpcError, match="Delete one to go on"):
            await session.send("Be idle")
        assert await ask(session, "session.abort") == {"success": True}
        assert await ask(session, "session.suspend") is None
        assert await ask(session, "session.interruptMainTurn") == {"interrupted": False}
        assert await ask(session, "session.shutdown") is None


async def test_should_allow_resume_and_continue_conversation_after_suspend(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Remember MAGIC", says("MAGIC it is."))
    model.on("What was it?", says("MAGIC"))
    session = await client.create_session(**approving())
    await reply_to(session, "Remember MAGIC")
    await session.rpc.suspend()
    await session.disconnect()
    again = await another.resume_session(session.session_id, **approving())
    assert await reply_to(again, "What was it?") == "MAGIC"


async def test_should_cancel_pending_permission_request_when_suspending(client: CopilotClient, model: Model) -> None:
    model.on("Ask and be suspended", calls("bash", command="touch suspended"), says("Never said."))
    model.on("Go on after asking", says("Gone on."))
    heard = Heard()
    session = await client.create_session(on_permission_request=leaves_it, on_event=heard)
    await session.send("Ask and be suspended")
    asked = await heard.until(PermissionRequestedData)
    await session.rpc.suspend()
    completed = await heard.until(PermissionCompletedData)
    assert completed.request_id == asked.request_id
    assert completed.result.kind == "cancelled"
    assert getattr(completed.result, "reason", None) == "Session suspended"
    assert (await heard.until_idle()).aborted is True
    assert "abort" not in [event.type.value for event in await session.get_events()]
    given = PermissionDecisionRequest(request_id=asked.request_id, result=PermissionDecisionApproveOnce())
    assert (await session.rpc.permissions.handle_pending_permission_request(given)).success is False
    assert await reply_to(session, "Go on after asking") == "Gone on."
    assert tool_results(model.last_call_about("Go on after asking")) == [INTERRUPTED]


async def test_should_reject_pending_external_tool_when_suspending(client: CopilotClient, model: Model) -> None:
    model.on("Call and be suspended", calls("slow_tool", value="x"), says("Never said."))
    model.on("Go on after calling", says("Gone on."))
    waiting = Waiting()
    heard = Heard()
    session = await client.create_session(**approving(tools=[client_tool("slow_tool", waiting)], on_event=heard))
    await session.send("Call and be suspended")
    asked = await heard.until(ExternalToolRequestedData)
    await waiting.started()
    await session.rpc.suspend()
    assert (await heard.until_idle()).aborted is True
    given = HandlePendingToolCallRequest(request_id=asked.request_id, result="TOO_LATE")
    assert (await session.rpc.tools.handle_pending_tool_call(given)).success is False
    assert await reply_to(session, "Go on after calling") == "Gone on."
    assert tool_results(model.last_call_about("Go on after calling")) == [INTERRUPTED]
    waiting.release.set_result("ORIGINAL_SHOULD_NOT_WIN")


async def test_suspending_ends_a_running_model_call(client: CopilotClient, model: Model) -> None:
    model.on("Think and be suspended", says("Never said."))
    hold = model.hold("Think and be suspended")
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Think and be suspended")
    await hold.until_reached()
    await session.rpc.suspend()
    await hold.until_left()
    assert (await heard.until_idle()).aborted is True
    assert await history(session, PermissionRequestedData) == []


async def test_suspending_an_unknown_session_is_an_error(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="nope"):
        await ask(client, "session.suspend", sessionId="nope")


async def test_concurrent_suspensions_count_as_one(client: CopilotClient, model: Model) -> None:
    model.on("Suspend me twice", says("Never said."))
    model.on("Go on after two", says("Gone on."))
    hold = model.hold("Suspend me twice")
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Suspend me twice")
    await hold.until_reached()
    await asyncio.gather(session.rpc.suspend(), session.rpc.suspend())
    await heard.until_idle()
    assert await reply_to(session, "Go on after two") == "Gone on."
