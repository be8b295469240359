"""Permission requests for tool calls: their content, the decision, and its effect on the call."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import (
    PermissionDecisionApproveOnce,
    PermissionDecisionReject,
    PermissionDecisionRequest,
    PermissionDecisionUserNotAvailable,
    PermissionsResetSessionApprovalsRequest,
    PermissionsSetApproveAllRequest,
)
from copilot.session import PermissionHandler, PermissionNoResult, PermissionRequestResult
from copilot.session_events import (
    PermissionCompletedData,
    PermissionRequest,
    PermissionRequestCustomTool,
    PermissionRequestedData,
    PermissionRequestRead,
    PermissionRequestShell,
    PermissionRequestWrite,
    ToolExecutionCompleteData,
    ToolExecutionStartData,
)

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    approving,
    calls,
    calls_all,
    client_tool,
    history,
    reply_to,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio

REJECTED = "The user rejected this tool call."
DENIED = "Permission denied and could not request permission from user"
NOBODY = "denied-no-approval-rule-and-could-not-request-from-user"


class Deciding:
    """A permission handler that records its requests."""

    def __init__(self, decision: PermissionRequestResult) -> None:
        self.asked: list[PermissionRequest] = []
        self._decision = decision

    def __call__(self, request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        self.asked.append(request)
        return self._decision


def approve() -> Deciding:
    return Deciding(PermissionDecisionApproveOnce())


async def test_should_invoke_permission_handler_for_write_operations(
    client: CopilotClient, home: Home, model: Model
) -> None:
    model.on("Write approved.txt", calls("create", path="approved.txt", file_text="approved"), says("Written."))
    handler = approve()
    session = await client.create_session(on_permission_request=handler)
    await reply_to(session, "Write approved.txt")
    (asked,) = handler.asked
    assert isinstance(asked, PermissionRequestWrite)
    assert asked.file_name.endswith("approved.txt")
    assert asked.tool_call_id
    assert "approved" in (asked.diff + (asked.new_file_contents or ""))
    assert (home.work / "approved.txt").read_text(encoding="utf-8") == "approved"


async def test_should_invoke_permission_handler_for_shell_commands(client: CopilotClient, model: Model) -> None:
    model.on("Run echo asked", calls("bash", command="echo asked", description="Say it"), says("Run."))
    handler = approve()
    session = await client.create_session(on_permission_request=handler)
    await reply_to(session, "Run echo asked")
    (asked,) = handler.asked
    assert isinstance(asked, PermissionRequestShell)
    assert asked.full_command_text == "echo asked"
    assert asked.tool_call_id
    (told,) = tool_results(model.last_call_about("Run echo asked"))
    assert told == "asked\n<exited with exit code 0>"


async def test_a_client_tool_asks_by_its_name_and_arguments(client: CopilotClient, model: Model) -> None:
    model.on("Use the asking tool", calls("asking_tool", value="v"), says("Used."))
    handler = approve()
    tool = client_tool("asking_tool", lambda arguments: "ok")
    session = await client.create_session(on_permission_request=handler, tools=[tool])
    await reply_to(session, "Use the asking tool")
    (asked,) = handler.asked
    assert isinstance(asked, PermissionRequestCustomTool)
    assert (asked.tool_name, asked.tool_description, asked.args) == ("asking_tool", "Looks up a value", {"value": "v"})
    (started,) = await history(session, ToolExecutionStartData)
    assert asked.tool_call_id == started.tool_call_id


async def test_tool_with_skip_permission_asks_for_none(client: CopilotClient, model: Model) -> None:
    model.on("Use the trusted tool", calls("trusted_tool", value="v"), says("{last_tool_result}"))
    handler = Deciding(PermissionDecisionReject())
    tool = client_tool("trusted_tool", lambda arguments: "trusted", skip_permission=True)
    session = await client.create_session(on_permission_request=handler, tools=[tool])
    assert await reply_to(session, "Use the trusted tool") == "trusted"
    assert handler.asked == []
    assert await history(session, PermissionRequestedData) == []


async def test_should_deny_permission_when_handler_returns_denied(
    client: CopilotClient, home: Home, model: Model
) -> None:
    protected = home.work / "protected.txt"
    protected.write_text("protected content", encoding="utf-8")
    model.on("Overwrite protected.txt", calls("create", path="protected.txt", file_text="hacked"), says("I could not."))
    session = await client.create_session(on_permission_request=Deciding(PermissionDecisionReject()))
    await reply_to(session, "Overwrite protected.txt")
    assert protected.read_text(encoding="utf-8") == "protected content"
    (completed,) = await history(session, PermissionCompletedData)
    assert completed.result.kind == "denied-interactively-by-user"
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False
    assert done.error is not None
    assert (done.error.message, done.error.code) == (REJECTED, "rejected")
    assert tool_results(model.last_call_about("Overwrite protected.txt")) == [REJECTED]


async def test_feedback_with_a_rejection_reaches_the_model(client: CopilotClient, model: Model) -> None:
    model.on("Reject with words", calls("bash", command="echo no"), says("All right."))
    decision = PermissionDecisionReject(feedback="Use the other folder.")
    session = await client.create_session(on_permission_request=Deciding(decision))
    await reply_to(session, "Reject with words")
    (told,) = tool_results(model.last_call_about("Reject with words"))
    assert told.startswith(REJECTED)
    assert "Use the other folder." in told


async def test_unavailable_user_means_denial_when_no_other_client_can_decide(
    client: CopilotClient, model: Model
) -> None:
    model.on("Nobody is there", calls("bash", command="touch never"), says("A pity."))
    session = await client.create_session(on_permission_request=Deciding(PermissionDecisionUserNotAvailable()))
    await reply_to(session, "Nobody is there")
    (completed,) = await history(session, PermissionCompletedData)
    assert completed.result.kind == NOBODY
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.error is not None
    assert (done.error.message, done.error.code) == (DENIED, "denied")


async def test_should_deny_tool_operations_by_default_without_a_handler(
    client: CopilotClient, home: Home, model: Model
) -> None:
    model.on("Write without asking", calls("create", path="unasked.txt", file_text="x"), says("I may not."))
    session = await client.create_session()
    await reply_to(session, "Write without asking")
    assert not (home.work / "unasked.txt").exists()
    assert tool_results(model.last_call_about("Write without asking")) == [DENIED]
    assert await history(session, PermissionRequestedData) == []


async def test_should_work_without_permission_handler(client: CopilotClient, model: Model) -> None:
    model.on("What is 2+2, unasked?", says("4"))
    session = await client.create_session()
    assert await reply_to(session, "What is 2+2, unasked?") == "4"


async def test_should_handle_async_permission_handler(client: CopilotClient, model: Model) -> None:
    model.on("Run echo later", calls("bash", command="echo later"), says("Run."))
    decided = asyncio.Event()

    async def handler(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        decided.set()
        return PermissionDecisionApproveOnce()

    session = await client.create_session(on_permission_request=handler)
    await reply_to(session, "Run echo later")
    assert decided.is_set()


async def test_should_handle_permission_handler_errors_gracefully(client: CopilotClient, model: Model) -> None:
    model.on("Run echo in spite of it", calls("bash", command="echo x"), says("It failed."))

    def handler(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        raise RuntimeError("Handler error")

    session = await client.create_session(on_permission_request=handler)
    assert await reply_to(session, "Run echo in spite of it") == "It failed."
    (done,) = await history(session, ToolExecutionCompleteData)
    assert done.success is False


async def test_should_resume_session_with_permission_handler(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Before the handler", says("Yes."))
    model.on("Run echo resumed", calls("bash", command="echo resumed"), says("Run."))
    first = await client.create_session(**approving())
    await reply_to(first, "Before the handler")
    await first.disconnect()
    handler = approve()
    second = await another.resume_session(first.session_id, on_permission_request=handler)
    await reply_to(second, "Run echo resumed")
    assert len(handler.asked) == 1


async def test_handler_without_a_result_leaves_the_request_open_for_an_answer_by_id(
    client: CopilotClient, model: Model
) -> None:
    model.on("Wait for the id", calls("bash", command="echo by id"), says("{last_tool_result}"))
    heard = Heard()
    session = await client.create_session(on_permission_request=Deciding(PermissionNoResult()), on_event=heard)
    await session.send("Wait for the id")
    asked = await heard.until(PermissionRequestedData)
    pending = await session.rpc.permissions.pending_requests()
    assert [item.request_id for item in pending.items] == [asked.request_id]
    decide = session.rpc.permissions.handle_pending_permission_request
    given = PermissionDecisionRequest(request_id=asked.request_id, result=PermissionDecisionApproveOnce())
    assert (await decide(given)).success is True
    assert (await decide(given)).success is False
    await heard.until_idle()
    assert tool_results(model.last_call_about("Wait for the id")) == ["by id\n<exited with exit code 0>"]
    assert (await session.rpc.permissions.pending_requests()).items == []


async def test_approval_for_the_session_is_not_asked_again(client: CopilotClient, model: Model) -> None:
    model.on("Twice, please", calls("often", value="1"), calls("often", value="2"), says("Done."))
    heard = Heard()
    tool = client_tool("often", lambda arguments: "ok")
    session = await client.create_session(
        on_permission_request=Deciding(PermissionNoResult()), tools=[tool], on_event=heard
    )
    await session.send("Twice, please")
    asked = await heard.until(PermissionRequestedData)
    approval = {"kind": "custom-tool", "toolName": "often"}
    given = {"requestId": asked.request_id, "result": {"kind": "approve-for-session", "approval": approval}}
    answer = await session.rpc.permissions.handle_pending_permission_request(PermissionDecisionRequest.from_dict(given))
    assert answer.success is True
    await heard.until_idle()
    assert len(heard.all(PermissionRequestedData)) == 1
    assert len(await history(session, ToolExecutionCompleteData)) == 2


async def test_approve_all_can_be_switched_on_and_the_sessions_approvals_reset(
    client: CopilotClient, model: Model
) -> None:
    model.on("Run echo one", calls("bash", command="echo one"), says("One."))
    model.on("Run echo two", calls("bash", command="echo two"), says("Two."))
    handler = Deciding(PermissionDecisionReject())
    session = await client.create_session(on_permission_request=handler)
    permissions = session.rpc.permissions
    assert (await permissions.set_approve_all(PermissionsSetApproveAllRequest(enabled=True))).success is True
    await reply_to(session, "Run echo one")
    assert handler.asked == []
    assert (await permissions.set_approve_all(PermissionsSetApproveAllRequest(enabled=False))).success is True
    assert (await permissions.reset_session_approvals(PermissionsResetSessionApprovalsRequest())).success is True
    await reply_to(session, "Run echo two")
    assert len(handler.asked) == 1


async def test_calls_of_one_message_are_decided_one_by_one(client: CopilotClient, model: Model) -> None:
    both = calls_all(("pair", {"value": "yes"}), ("pair", {"value": "no"}))
    model.on("Use it both ways", both, says("Half."))

    def handler(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        assert isinstance(request, PermissionRequestCustomTool)
        is_yes = isinstance(request.args, dict) and request.args["value"] == "yes"
        return PermissionDecisionApproveOnce() if is_yes else PermissionDecisionReject()

    tool = client_tool("pair", lambda arguments: arguments["value"])
    session = await client.create_session(on_permission_request=handler, tools=[tool])
    await reply_to(session, "Use it both ways")
    assert tool_results(model.last_call_about("Use it both ways")) == ["yes", REJECTED]


async def test_decision_stays_in_the_history_under_its_call(client: CopilotClient, model: Model) -> None:
    model.on("Run echo kept", calls("bash", command="echo kept"), says("Kept."))
    session = await client.create_session(on_permission_request=PermissionHandler.approve_all)
    await reply_to(session, "Run echo kept")
    (asked,) = await history(session, PermissionRequestedData)
    (completed,) = await history(session, PermissionCompletedData)
    (started,) = await history(session, ToolExecutionStartData)
    assert completed.request_id == asked.request_id
    assert completed.tool_call_id == started.tool_call_id
    assert completed.result.kind == "approved"


async def test_reading_asks_for_permission_too(client: CopilotClient, home: Home, model: Model) -> None:
    file = home.work / "read.txt"
    file.write_text("words", encoding="utf-8")
    model.on("Look at read.txt", calls("view", path="read.txt"), says("{last_tool_result}"))
    handler = approve()
    session = await client.create_session(on_permission_request=handler)
    assert "words" in await reply_to(session, "Look at read.txt")
    (asked,) = handler.asked
    assert isinstance(asked, PermissionRequestRead)
    assert asked.path.endswith("read.txt")


@pytest.mark.parametrize("path", ["../outside.txt", "link/outside.txt"])
async def test_permission_for_an_outside_path_names_its_real_target(
    client: CopilotClient, model: Model, tmp_path: Path, path: str
) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside.txt"
    work.mkdir()
    (work / "link").symlink_to(tmp_path)
    prompt = f"Write to {path}"
    model.on(prompt, calls("create", path=path, file_text="x"), says("I may not."))
    handler = Deciding(PermissionDecisionReject())
    session = await client.create_session(on_permission_request=handler, working_directory=str(work))
    await reply_to(session, prompt)
    (asked,) = handler.asked
    assert isinstance(asked, PermissionRequestWrite)
    assert str(outside.resolve()) in (asked.file_name, asked.resolved_path)
    assert "outside.txt" not in os.listdir(tmp_path)
