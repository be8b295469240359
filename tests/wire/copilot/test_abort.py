"""Aborting interrupts the running turn, keeps the history, and leaves the session usable at once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import HandlePendingToolCallRequest, PermissionDecisionApproveOnce, PermissionDecisionRequest
from copilot.session import PermissionNoResult, PermissionRequestResult
from copilot.session_events import (
    AbortData,
    AssistantMessageData,
    AssistantMessageDeltaData,
    ExternalToolCompletedData,
    ExternalToolRequestedData,
    PermissionCompletedData,
    PermissionRequest,
    PermissionRequestedData,
    ToolExecutionCompleteData,
    UserMessageData,
)

from tests.wire.copilot.harness import (
    Heard,
    Model,
    Pipe,
    Waiting,
    approving,
    ask,
    calls,
    client_tool,
    history,
    is_gone,
    reply_to,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio

INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."


def leaves_it(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionNoResult()


async def test_should_abort_during_active_streaming(client: CopilotClient, model: Model) -> None:
    model.on("Write a very long essay", says("one two three four five"))
    model.on("Say RECOVERED", says("RECOVERED"))
    hold = model.hold("Write a very long essay", piece=2)
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    await session.send("Write a very long essay")
    await heard.until(AssistantMessageDeltaData, lambda data: "two" in data.delta_content)
    await session.abort()
    await hold.until_left()
    assert (await heard.until_idle()).aborted is True
    shown = "".join(data.delta_content for data in heard.all(AssistantMessageDeltaData))
    assert shown == "one two"
    assert [data.content for data in await history(session, AssistantMessageData)] == [shown]
    (aborted,) = await history(session, AbortData)
    assert aborted.reason.value == "user_initiated"
    assert await reply_to(session, "Say RECOVERED") == "RECOVERED"


async def test_should_abort_during_active_tool_execution(client: CopilotClient, model: Model) -> None:
    model.on("Run slow_analysis", calls("slow_analysis", value="x"), says("Never said."))
    model.on("Say tool_abort_recovered", says("tool_abort_recovered"))
    waiting = Waiting()
    heard = Heard()
    session = await client.create_session(**approving(tools=[client_tool("slow_analysis", waiting)], on_event=heard))
    await session.send("Run slow_analysis")
    asked = await heard.until(ExternalToolRequestedData)
    await waiting.started()
    await session.abort()
    assert (await heard.until_idle()).aborted is True
    given = HandlePendingToolCallRequest(request_id=asked.request_id, result="RELEASED_AFTER_ABORT")
    assert (await session.rpc.tools.handle_pending_tool_call(given)).success is False
    assert heard.all(ExternalToolCompletedData) == []
    assert heard.all(ToolExecutionCompleteData) == []
    assert await reply_to(session, "Say tool_abort_recovered") == "tool_abort_recovered"
    assert tool_results(model.last_call_about("Say tool_abort_recovered")) == [INTERRUPTED]
    waiting.release.set_result("RELEASED_AFTER_ABORT")


async def test_aborting_cancels_a_pending_permission(client: CopilotClient, model: Model) -> None:
    model.on("Ask and be aborted", calls("bash", command="touch aborted"), says("Never said."))
    heard = Heard()
    session = await client.create_session(on_permission_request=leaves_it, on_event=heard)
    await session.send("Ask and be aborted")
    asked = await heard.until(PermissionRequestedData)
    await session.abort()
    completed = await heard.until(PermissionCompletedData)
    assert completed.request_id == asked.request_id
    assert completed.result.kind == "cancelled"
    assert getattr(completed.result, "reason", None) == "Session aborted"
    given = PermissionDecisionRequest(request_id=asked.request_id, result=PermissionDecisionApproveOnce())
    assert (await session.rpc.permissions.handle_pending_permission_request(given)).success is False


async def test_aborting_kills_a_built_in_command(
    client: CopilotClient, model: Model, pipe: Callable[[str], Pipe]
) -> None:
    begun = pipe("begun")
    command = f"echo $$ > {begun.path}; exec tail -f /dev/null"
    model.on("Run for ever", calls("bash", command=command), says("Never said."))
    model.on("What became of it?", says("It was killed."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Run for ever")
    pid = int(await begun.line())
    await session.abort()
    assert (await heard.until_idle()).aborted is True
    assert await asyncio.to_thread(is_gone, pid)
    assert await reply_to(session, "What became of it?") == "It was killed."
    (told,) = tool_results(model.last_call_about("What became of it?"))
    assert told == INTERRUPTED


async def test_aborting_an_idle_session_is_no_error_and_changes_nothing(client: CopilotClient, model: Model) -> None:
    model.on("Idle before and after", says("Yes."))
    session = await client.create_session(**approving())
    assert await ask(session, "session.abort") == {"success": True}
    await reply_to(session, "Idle before and after")
    await session.abort()
    await session.abort()
    assert await reply_to(session, "Idle before and after") == "Yes."


async def test_message_sent_right_after_an_abort_gets_its_turn(client: CopilotClient, model: Model) -> None:
    model.on("Be aborted at once", says("Never said."))
    model.on("Come right after", says("Here I am."))
    hold = model.hold("Be aborted at once")
    session = await client.create_session(**approving())
    await session.send("Be aborted at once")
    await hold.until_reached()
    await session.abort()
    assert await reply_to(session, "Come right after") == "Here I am."
    said = [data.content for data in await history(session, UserMessageData)]
    assert said == ["Be aborted at once", "Come right after"]


async def test_send_and_wait_reports_an_aborted_turn(client: CopilotClient, model: Model) -> None:
    model.on("Wait and be aborted", says("Never said."))
    hold = model.hold("Wait and be aborted")
    session = await client.create_session(**approving())

    async def abort() -> None:
        await hold.until_reached()
        await session.abort()

    async with asyncio.TaskGroup() as group:
        group.create_task(abort())
        with pytest.raises(RuntimeError, match="aborted"):
            await reply_to(session, "Wait and be aborted")
