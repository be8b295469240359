"""The life of a session: creating, sending, listing, resuming, configuring and deleting."""

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from copilot import CopilotClient
from copilot.session_events import (
    AssistantMessageData,
    SessionErrorData,
    SessionInfoData,
    SessionModelChangeData,
    SessionShutdownData,
    SessionStartData,
    SessionWarningData,
    UserMessageData,
)
from copilot.tools import define_tool
from pydantic import BaseModel

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    approving,
    ask,
    calls,
    client_tool,
    connected,
    content_of,
    get_final_assistant_message,
    history,
    reply_to,
    running,
    says,
    system_text,
    tool_names,
    tool_results,
)

pytestmark = pytest.mark.anyio


async def test_should_create_and_disconnect_sessions(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    assert session.session_id
    started, *_ = await session.get_events()
    assert isinstance(started.data, SessionStartData)
    assert started.data.session_id == session.session_id
    await session.disconnect()
    with pytest.raises(Exception, match="not found"):
        await session.get_events()


async def test_should_have_stateful_conversation(client: CopilotClient, model: Model) -> None:
    model.on("What is 1+1?", says("1+1 is 2."))
    model.on("Now if you double that?", says("Then it is 4."))
    session = await client.create_session(**approving())
    assert "2" in await reply_to(session, "What is 1+1?")
    assert "4" in await reply_to(session, "Now if you double that?")
    roles = [message["role"] for message in model.last_call_about("Now if you double that?")["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


async def test_should_create_a_session_with_appended_system_message_config(client: CopilotClient, model: Model) -> None:
    model.on("What is your full name, appended?", says("I am an assistant. Have a nice day!"))
    suffix = "End each response with the phrase 'Have a nice day!'"
    session = await client.create_session(**approving(system_message={"mode": "append", "content": suffix}))
    await reply_to(session, "What is your full name, appended?")
    told = system_text(model.last_call_about("appended?"))
    assert suffix in told
    assert told != suffix


async def test_should_create_a_session_with_replaced_system_message_config(client: CopilotClient, model: Model) -> None:
    model.on("What is your full name, replaced?", says("Testy McTestface"))
    whole = "You are an assistant called Testy McTestface. Reply succinctly."
    session = await client.create_session(**approving(system_message={"mode": "replace", "content": whole}))
    assert await reply_to(session, "What is your full name, replaced?") == "Testy McTestface"
    assert system_text(model.last_call_about("replaced?")) == whole


async def test_should_create_a_session_with_available_tools(client: CopilotClient, model: Model) -> None:
    model.on("Which tools, only two?", says("Two."))
    session = await client.create_session(**approving(available_tools=["view", "edit"]))
    await reply_to(session, "Which tools, only two?")
    assert sorted(tool_names(model.last_call_about("only two?"))) == ["edit", "view"]


async def test_should_create_a_session_with_excluded_tools(client: CopilotClient, model: Model) -> None:
    model.on("Which tools, not view?", says("Others."))
    session = await client.create_session(**approving(excluded_tools=["view"]))
    await reply_to(session, "Which tools, not view?")
    offered = tool_names(model.last_call_about("not view?"))
    assert "view" not in offered
    assert {"bash", "create", "edit", "grep", "glob"} <= set(offered)


async def test_should_handle_multiple_concurrent_sessions(client: CopilotClient) -> None:
    sessions = await asyncio.gather(*(client.create_session(**approving()) for _ in range(3)))
    assert len({session.session_id for session in sessions}) == 3
    for session in sessions:
        (started,) = await history(session, SessionStartData)
        assert started.session_id == session.session_id
        await session.disconnect()


async def test_concurrent_sessions_get_only_their_own_events(client: CopilotClient, model: Model) -> None:
    heard = [Heard() for _ in range(3)]
    for number in range(3):
        model.on(f"You are number {number}", says(f"I am number {number}"))
    sessions = [await client.create_session(**approving(on_event=one)) for one in heard]
    answers = await asyncio.gather(*(reply_to(one, f"You are number {i}") for i, one in enumerate(sessions)))
    assert answers == [f"I am number {number}" for number in range(3)]
    for number, one in enumerate(heard):
        assert [data.content for data in one.all(AssistantMessageData)] == [f"I am number {number}"]


async def test_should_resume_a_session_using_the_same_client(client: CopilotClient, model: Model) -> None:
    model.on("Remember 7.", says("7, then."))
    model.on("Double it, same client.", says("14"))
    first = await client.create_session(**approving())
    await reply_to(first, "Remember 7.")
    second = await client.resume_session(first.session_id, **approving())
    assert second.session_id == first.session_id
    said = await get_final_assistant_message(second)
    assert content_of(said) == "7, then."
    assert await reply_to(second, "Double it, same client.") == "14"


async def test_should_resume_a_session_using_a_new_client(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Remember 8.", says("8, then."))
    model.on("Double it, new client.", says("16"))
    first = await client.create_session(**approving())
    await reply_to(first, "Remember 8.")
    second = await another.resume_session(first.session_id, **approving())
    types = [event.type.value for event in await second.get_events()]
    assert "user.message" in types
    assert "session.resume" in types
    assert await reply_to(second, "Double it, new client.") == "16"


async def test_should_throw_error_resuming_nonexistent_session(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="Session not found: non-existent-session-id-12345"):
        await client.resume_session("non-existent-session-id-12345", **approving())


async def test_an_empty_session_can_be_resumed_and_is_not_listed(client: CopilotClient, another: CopilotClient) -> None:
    empty = await client.create_session(**approving())
    assert empty.session_id not in [found.session_id for found in await client.list_sessions()]
    again = await another.resume_session(empty.session_id, **approving())
    assert again.session_id == empty.session_id


async def test_creating_with_an_existing_id_returns_that_session_with_its_history(
    client: CopilotClient, model: Model
) -> None:
    model.on("Keep this.", says("Kept."))
    own = str(uuid4())
    first = await client.create_session(**approving(session_id=own))
    assert first.session_id == own
    await reply_to(first, "Keep this.")
    second = await client.create_session(**approving(session_id=own))
    assert [data.content for data in await history(second, UserMessageData)] == ["Keep this."]
    assert len(await history(second, SessionStartData)) == 1


async def test_should_list_sessions(client: CopilotClient, home: Home, model: Model) -> None:
    model.on("Say hello, listed", says("Hello"))
    session = await client.create_session(**approving())
    await reply_to(session, "Say hello, listed")
    (found,) = [one for one in await client.list_sessions() if one.session_id == session.session_id]
    assert found.summary == "Say hello, listed"
    assert found.is_remote is False
    assert found.start_time <= found.modified_time
    assert found.context is not None
    assert found.context.working_directory == str(home.work)


async def test_should_delete_session(client: CopilotClient, model: Model) -> None:
    model.on("Say goodbye", says("Goodbye"))
    session = await client.create_session(**approving())
    await reply_to(session, "Say goodbye")
    await client.delete_session(session.session_id)
    assert session.session_id not in [one.session_id for one in await client.list_sessions()]
    with pytest.raises(Exception, match="not found"):
        await client.resume_session(session.session_id, **approving())


async def test_should_get_last_session_id(client: CopilotClient, model: Model) -> None:
    model.on("Say hello, last", says("Hello"))
    session = await client.create_session(**approving())
    await reply_to(session, "Say hello, last")
    assert await client.get_last_session_id() == session.session_id


async def test_should_get_session_metadata_by_id(client: CopilotClient, model: Model) -> None:
    model.on("Say hello, metadata", says("Hello"))
    session = await client.create_session(**approving())
    await reply_to(session, "Say hello, metadata")
    found = await client.get_session_metadata(session.session_id)
    assert found is not None
    assert found.session_id == session.session_id
    assert found.summary == "Say hello, metadata"
    assert await client.get_session_metadata("non-existent-session-id") is None


async def test_should_create_session_with_custom_tool(client: CopilotClient, model: Model) -> None:
    prompt = "What is the secret number for key ALPHA?"
    model.on(prompt, calls("get_secret_number", key="ALPHA"), says("It is {last_tool_result}"))

    class Secret(BaseModel):
        key: str

    @define_tool(description="Gets the secret number")
    def get_secret_number(params: Secret) -> int:
        return 54321 if params.key == "ALPHA" else 0

    session = await client.create_session(**approving(tools=[get_secret_number]))
    assert "54321" in await reply_to(session, prompt)


async def test_should_receive_session_events(client: CopilotClient, model: Model) -> None:
    model.on("What is 100+200?", says("300"))
    early = Heard()
    session = await client.create_session(**approving(on_event=early))
    await early.until(SessionStartData)
    late = Heard(session)
    await session.send("What is 100+200?")
    await late.until_idle()
    assert {"user.message", "assistant.message", "session.idle"} <= set(late.types)
    assert content_of(await get_final_assistant_message(session)) == "300"


async def test_unsubscribed_handler_gets_no_events(client: CopilotClient, model: Model) -> None:
    model.on("Are you heard?", says("By one."))
    session = await client.create_session(**approving())
    stays, goes = Heard(session), Heard()
    unsubscribe = session.on(goes)
    unsubscribe()
    await session.send("Are you heard?")
    await stays.until_idle()
    assert goes.events == []


async def test_should_log_messages_at_all_levels(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.log("Info message")
    await session.log("Warning message", level="warning")
    await session.log("Error message", level="error")
    await session.log("Passing message", ephemeral=True)
    assert (await heard.until(SessionInfoData, lambda data: data.message == "Info message")).info_type == "notification"
    assert (await heard.until(SessionWarningData)).message == "Warning message"
    assert (await heard.until(SessionErrorData)).message == "Error message"
    await heard.until(SessionInfoData, lambda data: data.message == "Passing message")
    assert [data.message for data in await history(session, SessionInfoData)] == ["Info message"]
    assert len(await history(session, SessionWarningData)) == 1


async def test_should_set_model_on_existing_session(client: CopilotClient, model: Model) -> None:
    model.on("Which model, switched?", says("gpt-4.1"))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.set_model("gpt-4.1")
    assert (await heard.until(SessionModelChangeData, lambda data: data.new_model == "gpt-4.1")).new_model == "gpt-4.1"
    await reply_to(session, "Which model, switched?")
    assert model.last_call_about("switched?")["model"] == "gpt-4.1"


async def test_should_set_model_with_reasoning_effort(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.set_model("gpt-4.1", reasoning_effort="high")
    changed = await heard.until(SessionModelChangeData, lambda data: data.new_model == "gpt-4.1")
    assert changed.reasoning_effort == "high"
    current = await session.rpc.model.get_current()
    assert (current.model_id, current.reasoning_effort) == ("gpt-4.1", "high")


async def test_model_named_at_creation_is_called(client: CopilotClient, model: Model) -> None:
    model.on("Which model, named?", says("That one."))
    session = await client.create_session(**approving(model="claude-sonnet-4.5"))
    await reply_to(session, "Which model, named?")
    assert model.last_call_about("named?")["model"] == "claude-sonnet-4.5"


async def test_without_a_name_the_endpoints_first_model_is_called(client: CopilotClient, model: Model) -> None:
    model.on("Which model, unnamed?", says("The default."))
    session = await client.create_session(**approving())
    await reply_to(session, "Which model, unnamed?")
    assert model.last_call_about("unnamed?")["model"] == "scripted"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_should_send_with_blob_attachment(client: CopilotClient, model: Model) -> None:
    model.on("What colour is this pixel?", says("Red."))
    session = await client.create_session(**approving())
    blob: Any = {"type": "blob", "data": PIXEL, "mimeType": "image/png", "displayName": "pixel.png"}
    await reply_to(session, "What colour is this pixel?", attachments=[blob])
    (said,) = await history(session, UserMessageData)
    assert said.attachments is not None
    assert len(said.attachments) == 1
    user = model.last_call_about("pixel?")["messages"][-1]
    assert any(part["type"] == "image_url" and PIXEL in part["image_url"]["url"] for part in user["content"])


async def test_should_send_with_file_attachment(client: CopilotClient, home: Home, model: Model) -> None:
    model.on("What is in this file?", says("Words."))
    file = home.work / "attached.txt"
    file.write_text("Attached words.", encoding="utf-8")
    session = await client.create_session(**approving())
    await reply_to(session, "What is in this file?", attachments=[{"type": "file", "path": str(file)}])
    (said,) = await history(session, UserMessageData)
    assert said.attachments is not None
    assert len(said.attachments) == 1
    user = model.last_call_about("this file?")["messages"][-1]
    assert "attached.txt" in str(user["content"])
    assert "Attached words." in str(user["content"])


async def test_every_kind_of_attachment_can_be_read_again(client: CopilotClient, home: Home, model: Model) -> None:
    model.on("What is all this?", says("Many things."))
    file = home.work / "any.txt"
    file.write_text("one\ntwo\n", encoding="utf-8")
    range_of = {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 3}}
    attachments: list[Any] = [
        {"type": "file", "path": str(file), "displayName": "Any"},
        {"type": "file", "path": str(file)},
        {"type": "directory", "path": str(home.work)},
        {"type": "selection", "filePath": str(file), "displayName": "Any", "text": "one", "selection": range_of},
        {"type": "selection", "filePath": str(file), "displayName": "Any", "text": "one"},
        {"type": "blob", "data": PIXEL, "mimeType": "image/png"},
    ]
    session = await client.create_session(**approving())
    await reply_to(session, "What is all this?", attachments=attachments)
    (said,) = await history(session, UserMessageData)
    assert said.attachments is not None
    assert [one.type for one in said.attachments] == [one["type"] for one in attachments]


async def test_should_abort_a_session(client: CopilotClient, model: Model) -> None:
    model.on("Run the shell command, aborted", says("Never said."))
    model.on("What is 2+2, after?", says("4"))
    hold = model.hold("Run the shell command, aborted")
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Run the shell command, aborted")
    await hold.until_reached()
    await session.abort()
    await heard.until_idle()
    assert "abort" in [event.type.value for event in await session.get_events()]
    assert await reply_to(session, "What is 2+2, after?") == "4"


async def test_the_first_prompt_is_the_title(client: CopilotClient, model: Model) -> None:
    model.on("Call it this", says("Called."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Call it this")
    await heard.until_idle()
    assert (await session.rpc.name.get()).name == "Call it this"
    assert "session.title_changed" in heard.types
    assert len(model.calls_about("Call it this")) == 1


async def test_a_workspace_path_is_given_and_exists(client: CopilotClient, home: Home) -> None:
    session = await client.create_session(**approving())
    assert session.workspace_path == home.data / "session-state" / session.session_id


async def test_owners_of_one_home_have_separate_folders_for_the_same_session_id(own_home: Home) -> None:
    folders = []
    for owner in ("local", "ann", "bob"):
        async with own_home.serve(HOLDFAST_OWNER=owner) as server, connected(server.client()) as client:
            session = await client.create_session(**approving(session_id="same"))
            assert (await session.rpc.plan.read()).content is None
            await ask(session, "session.plan.update", content=f"the plan of {owner}")
            folders.append(session.workspace_path)
    assert folders[0] == own_home.data / "session-state" / "same"
    assert len(set(folders)) == 3


async def test_destroying_or_detaching_an_unknown_session_is_no_error(client: CopilotClient) -> None:
    assert (await ask(client, "session.destroy", sessionId="nope"))["success"] is False


async def test_session_destroyed_by_its_last_client_is_shut_down_and_resumable(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Before the end", says("Yes."))
    session = await client.create_session(**approving())
    await reply_to(session, "Before the end")
    assert await ask(session, "session.destroy") == {"success": True}
    again = await another.resume_session(session.session_id, **approving())
    (shutdown,) = await history(again, SessionShutdownData)
    assert shutdown.shutdown_type.value == "routine"


async def test_sessions_outlive_a_stopped_runtime(own_home: Home, model: Model) -> None:
    model.on("Stay", says("I stay."))
    model.on("Still there?", says("Still."))
    async with running(own_home.stdio()) as first:
        session = await first.create_session(**approving())
        await reply_to(session, "Stay")
    async with running(own_home.stdio()) as second:
        again = await second.resume_session(session.session_id, **approving())
        assert await reply_to(again, "Still there?") == "Still."
        assert tool_results(model.last_call_about("Still there?")) == []
        texts = [data.content for data in await history(again, AssistantMessageData)]
        assert texts == ["I stay.", "Still."]


async def test_log_is_not_written_in_the_working_directory(client: CopilotClient, model: Model, tmp_path: Path) -> None:
    model.on("Leave no trace", says("None."))
    session = await client.create_session(**approving(working_directory=str(tmp_path)))
    await reply_to(session, "Leave no trace")
    assert os.listdir(tmp_path) == []


async def test_unknown_tool_is_an_error_that_the_model_sees(client: CopilotClient, model: Model) -> None:
    model.on("Use a tool of another", calls("not_a_tool"), says("I see."))
    tool = client_tool("is_a_tool", lambda arguments: "")
    session = await client.create_session(**approving(tools=[tool], available_tools=["view", "is_a_tool"]))
    await reply_to(session, "Use a tool of another")
    (told,) = tool_results(model.last_call_about("Use a tool of another"))
    assert told == "Tool 'not_a_tool' does not exist. Available tools that can be called are view, is_a_tool."
