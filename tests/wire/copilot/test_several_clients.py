"""Several clients on one session: all get the same events, and one client's decision holds for all."""

import asyncio
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.rpc import (
    HandlePendingToolCallRequest,
    PermissionDecisionApproveOnce,
    PermissionDecisionReject,
    PermissionDecisionRequest,
    PermissionDecisionUserNotAvailable,
)
from copilot.session import PermissionNoResult, PermissionRequestResult
from copilot.session_events import (
    AssistantMessageData,
    ExternalToolCompletedData,
    ExternalToolRequestedData,
    PermissionCompletedData,
    PermissionRequest,
    PermissionRequestedData,
    SessionResumeData,
    SessionShutdownData,
    UserMessageData,
)

from tests.wire.copilot.harness import (
    Heard,
    Model,
    Server,
    Waiting,
    approving,
    calls,
    client_tool,
    connected,
    content_of,
    get_final_assistant_message,
    history,
    reply_to,
    says,
    tool_names,
    tool_results,
)

pytestmark = pytest.mark.anyio


def leaves_it(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionNoResult()


async def test_both_clients_see_tool_request_and_completion_events(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Use magic_number", calls("magic_number", value="hello"), says("{last_tool_result}"))
    heard = [Heard(), Heard()]
    tool = client_tool("magic_number", lambda arguments: f"MAGIC_{arguments['value']}_42")
    one = await client.create_session(**approving(tools=[tool], on_event=heard[0]))
    await another.resume_session(one.session_id, on_permission_request=leaves_it, on_event=heard[1])
    assert await reply_to(one, "Use magic_number") == "MAGIC_hello_42"
    for each in heard:
        await each.until_idle()
        assert len(each.all(ExternalToolRequestedData)) == 1
        assert len(each.all(ExternalToolCompletedData)) == 1


async def test_all_clients_get_the_same_events_with_the_same_ids(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Tell us both", calls("both", value="x"), says("Told."))
    heard = [Heard(), Heard()]
    tool = client_tool("both", lambda arguments: "ok")
    one = await client.create_session(**approving(tools=[tool], on_event=heard[0]))
    await another.resume_session(one.session_id, on_permission_request=leaves_it, on_event=heard[1])
    await one.send("Tell us both")
    for each in heard:
        await each.until_idle()
    persisted = [[event.id for event in each.events if not event.ephemeral] for each in heard]
    assert heard[1].types[0] == "session.resume"
    assert persisted[0][-len(persisted[1]) :] == persisted[1]


async def test_one_client_approves_permission_and_both_see_the_result(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Run echo approved by one", calls("bash", command="echo approved"), says("Run."))
    heard = [Heard(), Heard()]
    one = await client.create_session(**approving(on_event=heard[0]))
    await another.resume_session(one.session_id, on_permission_request=leaves_it, on_event=heard[1])
    await reply_to(one, "Run echo approved by one")
    for each in heard:
        assert (await each.until(PermissionCompletedData)).result.kind == "approved"
        assert len(each.all(PermissionRequestedData)) == 1


async def test_one_client_rejects_permission_and_both_see_the_result(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Run echo rejected by one", calls("bash", command="echo rejected"), says("Not run."))
    heard = [Heard(), Heard()]
    one = await client.create_session(
        on_permission_request=lambda request, invocation: PermissionDecisionReject(), on_event=heard[0]
    )
    await another.resume_session(one.session_id, on_permission_request=leaves_it, on_event=heard[1])
    await reply_to(one, "Run echo rejected by one")
    for each in heard:
        assert (await each.until(PermissionCompletedData)).result.kind == "denied-interactively-by-user"


async def test_unavailable_client_does_not_decide_for_the_others(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Run echo for who is there", calls("bash", command="echo there"), says("{last_tool_result}"))
    heard = Heard()
    one = await client.create_session(
        on_permission_request=lambda request, invocation: PermissionDecisionUserNotAvailable(), on_event=heard
    )
    two = await another.resume_session(one.session_id, on_permission_request=leaves_it)
    await one.send("Run echo for who is there")
    asked = await heard.until(PermissionRequestedData)
    given = PermissionDecisionRequest(request_id=asked.request_id, result=PermissionDecisionApproveOnce())
    assert (await two.rpc.permissions.handle_pending_permission_request(given)).success is True
    assert "there" in content_of(await get_final_assistant_message(two))


async def test_two_clients_register_different_tools_and_agent_uses_both(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Use city and currency", calls("city", value="US"), calls("currency", value="US"), says("Both."))
    one = await client.create_session(**approving(tools=[client_tool("city", lambda a: f"CITY_FOR_{a['value']}")]))
    currency = client_tool("currency", lambda a: f"CURRENCY_FOR_{a['value']}")
    await another.resume_session(one.session_id, **approving(tools=[currency]))
    assert await reply_to(one, "Use city and currency") == "Both."
    assert tool_results(model.last_call_about("Use city and currency")) == ["CITY_FOR_US", "CURRENCY_FOR_US"]


async def test_disconnecting_client_removes_its_tools(client: CopilotClient, server: Server, model: Model) -> None:
    model.on("What is left?", says("One."))
    one = await client.create_session(**approving(tools=[client_tool("stable_tool", lambda a: "stable")]))
    async with connected(server.client()) as second:
        await second.resume_session(one.session_id, **approving(tools=[client_tool("fleeting_tool", lambda a: "x")]))
        await reply_to(one, "What is left?")
        assert {"stable_tool", "fleeting_tool"} <= set(tool_names(model.last_call_about("What is left?")))
    await reply_to(one, "What is left?")
    offered = tool_names(model.last_call_about("What is left?"))
    assert "stable_tool" in offered
    assert "fleeting_tool" not in offered


async def test_tool_name_belongs_to_one_connection_until_it_closes(client: CopilotClient, server: Server) -> None:
    one = await client.create_session(**approving())
    async with connected(server.client()) as owner:
        await owner.resume_session(one.session_id, **approving(tools=[client_tool("ta", lambda a: "")]))
        with pytest.raises(Exception, match="External tool name clash: ta already registered by another connection"):
            await client.resume_session(one.session_id, **approving(tools=[client_tool("ta", lambda a: "")]))
    await client.resume_session(one.session_id, **approving(tools=[client_tool("ta", lambda a: "")]))


async def test_a_call_whose_owner_left_stays_pending_and_another_client_may_answer_it(
    client: CopilotClient, server: Server, model: Model
) -> None:
    model.on("Use the tool of who leaves", calls("leaver", value="x"), says("{last_tool_result}"))
    waiting = Waiting()
    heard = Heard()
    stays = await client.create_session(**approving(on_event=heard))
    owner = server.client()
    owned = await owner.resume_session(stays.session_id, **approving(tools=[client_tool("leaver", waiting)]))
    await stays.send("Use the tool of who leaves")
    asked = await heard.until(ExternalToolRequestedData)
    await waiting.started()
    await owner.force_stop()
    given = HandlePendingToolCallRequest(request_id=asked.request_id, result="ANSWERED_BY_ANOTHER")
    assert (await stays.rpc.tools.handle_pending_tool_call(given)).success is True
    assert content_of(await get_final_assistant_message(stays)) == "ANSWERED_BY_ANOTHER"
    assert owned.session_id == stays.session_id


async def test_the_first_answer_wins_across_clients(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Race for it", calls("bash", command="echo race"), says("Won."))
    heard = Heard()
    one = await client.create_session(on_permission_request=leaves_it, on_event=heard)
    two = await another.resume_session(one.session_id, on_permission_request=leaves_it)
    await one.send("Race for it")
    asked = await heard.until(PermissionRequestedData)
    given = PermissionDecisionRequest(request_id=asked.request_id, result=PermissionDecisionApproveOnce())
    answers = await asyncio.gather(
        *(each.rpc.permissions.handle_pending_permission_request(given) for each in (one, two))
    )
    assert sorted(answer.success for answer in answers) == [False, True]
    await heard.until_idle()
    assert len(await history(one, PermissionCompletedData)) == 1


async def test_resume_beside_an_idle_client_is_announced_to_both_as_not_active(
    client: CopilotClient, another: CopilotClient
) -> None:
    heard = Heard()
    one = await client.create_session(**approving(on_event=heard))
    await another.resume_session(one.session_id, **approving())
    assert (await heard.until(SessionResumeData)).session_was_active is False


async def test_resume_beside_a_client_in_mid_turn_reports_active_and_cancels_nothing(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Be in the middle", says("The end."))
    hold = model.hold("Be in the middle")
    heard = [Heard(), Heard()]
    one = await client.create_session(**approving(on_event=heard[0]))
    await one.send("Be in the middle")
    await hold.until_reached()
    two = await another.resume_session(one.session_id, **approving(on_event=heard[1]))
    (resumed,) = await history(two, SessionResumeData)
    assert resumed.session_was_active is True
    hold.release()
    for each in heard:
        assert (await each.until(AssistantMessageData)).content == "The end."
        await each.until_idle()


async def test_a_session_is_not_shut_down_while_another_client_is_attached(
    client: CopilotClient, server: Server, model: Model
) -> None:
    model.on("Stay with one", says("Stays."))
    one = await client.create_session(**approving())
    await reply_to(one, "Stay with one")
    async with connected(server.client()) as second:
        await second.resume_session(one.session_id, **approving())
    assert await history(one, SessionShutdownData) == []
    assert await reply_to(one, "Stay with one") == "Stays."


async def test_messages_of_two_clients_form_one_conversation_in_order_of_arrival(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    for number in range(4):
        model.on(f"Message {number}", says(f"Answer {number}"))
    heard = Heard()
    one = await client.create_session(**approving(on_event=heard))
    two = await another.resume_session(one.session_id, **approving())
    for number, each in enumerate((one, two, one, two)):
        await each.send(f"Message {number}")
    await heard.until(AssistantMessageData, lambda data: data.content == "Answer 3")
    assert [data.content for data in await history(two, UserMessageData)] == [f"Message {n}" for n in range(4)]
    assert [data.content for data in await history(one, AssistantMessageData)] == [f"Answer {n}" for n in range(4)]
