"""The events of a turn: their types, their order, their fields and their parents."""

from datetime import datetime
from uuid import UUID

import pytest
from copilot import CopilotClient
from copilot.session_events import (
    AssistantMessageData,
    AssistantTurnEndData,
    AssistantTurnStartData,
    AssistantUsageData,
    ExternalToolRequestedData,
    PermissionRequestedData,
    SessionEvent,
    SessionIdleData,
    SessionModelChangeData,
    SessionStartData,
    SessionTitleChangedData,
    SystemMessageData,
    ToolExecutionCompleteData,
    ToolExecutionStartData,
    UserMessageData,
)

from holdfast.events.quote import unmarked
from holdfast.models.model import TokenUsage
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
)

pytestmark = pytest.mark.anyio

EPHEMERAL = {
    "session.idle",
    "assistant.idle",
    "session.title_changed",
    "pending_messages.modified",
    "session.usage_info",
    "assistant.usage",
    "assistant.message_start",
    "assistant.message_delta",
    "assistant.streaming_delta",
    "session.tools_updated",
}


def types(events: list[SessionEvent]) -> list[str]:
    return [event.type.value for event in events]


def in_order(found: list[str], *expected: str) -> None:
    """Check that these types occur in this order; others may come between them."""
    rest = iter(found)
    for name in expected:
        assert name in rest, f"{name} is missing or too early in {found}"


async def test_a_plain_turn_has_these_events_in_this_order(client: CopilotClient, model: Model) -> None:
    model.on("A plain turn", says("Plain."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("A plain turn")
    await heard.until_idle()
    in_order(
        heard.types,
        "session.start",
        "user.message",
        "assistant.turn_start",
        "assistant.message",
        "assistant.turn_end",
        "session.idle",
    )
    for once in ("session.start", "user.message", "assistant.message", "assistant.turn_end", "session.idle"):
        assert heard.types.count(once) == 1, once
    kept = types(await session.get_events())
    assert kept == [name for name in heard.types if name not in EPHEMERAL and name in kept]
    in_order(
        kept,
        "session.start",
        "session.model_change",
        "user.message",
        "system.message",
        "assistant.turn_start",
        "assistant.message",
        "assistant.turn_end",
    )
    assert not EPHEMERAL & set(kept)


async def test_should_emit_events_in_correct_order_for_tool_using_conversation(
    client: CopilotClient, model: Model
) -> None:
    model.on("A turn with a tool", calls("ordered", value="x"), says("Done."))
    heard = Heard()
    tool = client_tool("ordered", lambda arguments: "ok")
    session = await client.create_session(**approving(tools=[tool], on_event=heard))
    await session.send("A turn with a tool")
    await heard.until_idle()
    in_order(
        heard.types,
        "user.message",
        "assistant.turn_start",
        "assistant.message",
        "tool.execution_start",
        "permission.requested",
        "permission.completed",
        "external_tool.requested",
        "external_tool.completed",
        "tool.execution_complete",
        "assistant.turn_end",
        "assistant.turn_start",
        "assistant.message",
        "assistant.turn_end",
        "session.idle",
    )
    assert heard.types[-1] == "session.idle"


async def test_all_calls_of_a_message_start_before_any_permission_is_asked(client: CopilotClient, model: Model) -> None:
    model.on("Two at once", calls_all(("two", {"value": "1"}), ("two", {"value": "2"})), says("Done."))
    session = await client.create_session(**approving(tools=[client_tool("two", lambda arguments: "ok")]))
    await reply_to(session, "Two at once")
    found = types(await session.get_events())
    first_asked = found.index("permission.requested")
    assert found[:first_asked].count("tool.execution_start") == 2


async def test_should_include_valid_fields_on_all_events(client: CopilotClient, model: Model) -> None:
    model.on("Valid fields", calls("bash", command="echo valid"), says("Valid."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard, streaming=True))
    await session.send("Valid fields")
    await heard.until_idle()
    for event in (*heard.events, *await session.get_events()):
        assert isinstance(event.id, UUID)
        assert isinstance(event.timestamp, datetime)
        assert event.timestamp.tzinfo is not None
    ids = [event.id for event in heard.events]
    assert len(ids) == len(set(ids))


async def test_persisted_events_form_a_chain_and_ephemeral_ones_point_into_it(
    client: CopilotClient, model: Model
) -> None:
    model.on("A chain of events", calls("bash", command="echo chain"), says("Chained."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard, streaming=True))
    await session.send("A chain of events")
    await heard.until_idle()
    kept = await session.get_events()
    assert kept[0].parent_id is None
    assert [event.parent_id for event in kept[1:]] == [event.id for event in kept[:-1]]
    known = {event.id for event in kept}
    for event in heard.events:
        assert bool(event.ephemeral) == (event.id not in known)
        assert event.parent_id is None or event.parent_id in known


async def test_received_events_equal_the_persisted_ones(client: CopilotClient, model: Model) -> None:
    model.on("Heard and kept", calls("bash", command="echo same"), says("The same."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Heard and kept")
    await heard.until_idle()
    live = [event.to_dict() for event in heard.events if not event.ephemeral]
    kept = [event.to_dict() for event in await session.get_events()]
    assert live == kept


async def test_user_message_has_its_typed_text_its_model_text_and_its_delivery(
    client: CopilotClient, model: Model
) -> None:
    model.on("Typed by a person", says("Read."))
    session = await client.create_session(**approving())
    message_id = await session.send("Typed by a person")
    heard = Heard(session)
    await heard.until_idle()
    (said,) = await history(session, UserMessageData)
    assert said.content == "Typed by a person"
    assert said.transformed_content is not None
    assert said.transformed_content.startswith("<current_datetime>")
    assert said.transformed_content.endswith("</current_datetime>\n\nTyped by a person")
    assert said.delivery is not None
    assert said.delivery.value == "idle"
    assert said.message_id == message_id
    (sent,) = [m for m in model.last_call_about("Typed by a person")["messages"] if m["role"] == "user"]
    assert unmarked(sent["content"]) == said.transformed_content


async def test_should_emit_assistant_message_with_message_id(client: CopilotClient, model: Model) -> None:
    model.on("Say pong", says("pong"))
    session = await client.create_session(**approving())
    message_id = await session.send("Say pong")
    await Heard(session).until_idle()
    (said,) = await history(session, AssistantMessageData)
    assert said.message_id
    assert said.content == "pong"
    assert said.originating_message_id == message_id
    assert not said.tool_requests


async def test_should_emit_tool_execution_events_with_correct_fields(
    client: CopilotClient, home: Home, model: Model
) -> None:
    (home.work / "data.txt").write_text("test data", encoding="utf-8")
    model.on("Read data.txt", calls("view", path="data.txt"), says("test data"))
    session = await client.create_session(**approving())
    await reply_to(session, "Read data.txt")
    (started,) = await history(session, ToolExecutionStartData)
    (done,) = await history(session, ToolExecutionCompleteData)
    (asking, _) = await history(session, AssistantMessageData)
    assert asking.tool_requests is not None
    (requested,) = asking.tool_requests
    assert requested.tool_call_id == started.tool_call_id == done.tool_call_id
    assert requested.name == started.tool_name == "view"
    assert requested.arguments == started.arguments == {"path": "data.txt"}
    assert done.success is True
    assert done.result is not None
    assert "test data" in done.result.content


async def test_steps_of_a_turn_are_numbered_and_belong_together(client: CopilotClient, model: Model) -> None:
    model.on("Two steps", calls("bash", command="echo step"), says("Done."))
    session = await client.create_session(**approving())
    await reply_to(session, "Two steps")
    starts = await history(session, AssistantTurnStartData)
    assert [data.turn_id for data in starts] == ["0", "1"]
    assert [data.turn_id for data in await history(session, AssistantTurnEndData)] == ["0", "1"]
    (said,) = await history(session, UserMessageData)
    assert {data.interaction_id for data in starts} == {said.interaction_id}
    await reply_to(session, "Two steps")
    starts = await history(session, AssistantTurnStartData)
    assert [data.turn_id for data in starts] == ["0", "1", "0", "1"]
    assert len({data.interaction_id for data in starts}) == 2


async def test_should_emit_assistant_usage_event_after_model_call(client: CopilotClient, model: Model) -> None:
    model.on("Use some tokens", says("Used.", usage=TokenUsage(input_tokens=120, output_tokens=7)))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Use some tokens")
    await heard.until_idle()
    (used,) = heard.all(AssistantUsageData)
    assert (used.model, used.input_tokens, used.output_tokens) == ("scripted", 120, 7)


async def test_the_first_turn_names_the_session_and_its_model(client: CopilotClient, model: Model) -> None:
    model.on("The first of two", says("One."))
    model.on("The second of two", says("Two."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("The first of two")
    await heard.until_idle()
    await session.send("The second of two")
    await heard.until_idle(2)
    assert [data.title for data in heard.all(SessionTitleChangedData)] == ["The first of two"]
    (change,) = heard.all(SessionModelChangeData)
    assert change.new_model == "scripted"
    assert len(heard.all(SystemMessageData)) == 1


async def test_session_start_names_the_session_and_its_directory(client: CopilotClient, home: Home) -> None:
    session = await client.create_session(**approving())
    (started,) = await history(session, SessionStartData)
    assert started.session_id == session.session_id
    assert started.context is not None
    assert started.context.cwd == str(home.work)
    assert started.producer
    assert started.copilot_version


async def test_requests_name_the_call_that_they_belong_to(client: CopilotClient, model: Model) -> None:
    model.on("Whose request?", calls("whose", value="x"), says("Its."))
    session = await client.create_session(**approving(tools=[client_tool("whose", lambda arguments: "ok")]))
    await reply_to(session, "Whose request?")
    (started,) = await history(session, ToolExecutionStartData)
    (asked,) = await history(session, PermissionRequestedData)
    (called,) = await history(session, ExternalToolRequestedData)
    assert asked.permission_request.tool_call_id == started.tool_call_id
    assert called.tool_call_id == started.tool_call_id
    assert (called.tool_name, called.arguments) == ("whose", {"value": "x"})
    assert called.session_id == session.session_id


async def test_reasoning_is_persisted_for_people(client: CopilotClient, model: Model) -> None:
    model.on("Think about it", says("Thought.", reasoning="Because of this."))
    session = await client.create_session(**approving())
    await reply_to(session, "Think about it")
    (said,) = await history(session, AssistantMessageData)
    assert said.reasoning_text == "Because of this."


async def test_idle_is_sent_once_each_time_the_session_becomes_idle(client: CopilotClient, model: Model) -> None:
    model.on("Rest after this", says("Resting."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    for number in range(3):
        await session.send("Rest after this")
        await heard.until_idle(number + 1)
    assert len(heard.all(SessionIdleData)) == 3
    assert all(not data.aborted for data in heard.all(SessionIdleData))
