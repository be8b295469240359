"""Options at a session's creation and their effect: directory, provider, headers, instructions, names."""

from pathlib import Path
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.session_events import SessionStartData, UserMessageData

from tests.wire.copilot.harness import (
    Home,
    Model,
    approving,
    ask,
    calls,
    connected,
    history,
    reply_to,
    says,
    system_text,
    tool_names,
)

pytestmark = pytest.mark.anyio


async def test_should_apply_working_directory_on_session_create(
    client: CopilotClient, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "marker.txt").write_text("I am in the subdirectory", encoding="utf-8")
    model.on("Read marker.txt", calls("view", path="marker.txt"), says("{last_tool_result}"))
    session = await client.create_session(**approving(working_directory=str(tmp_path)))
    assert "subdirectory" in await reply_to(session, "Read marker.txt")
    (started,) = await history(session, SessionStartData)
    assert started.context is not None
    assert started.context.cwd == str(tmp_path)


async def test_should_apply_working_directory_on_session_resume(
    client: CopilotClient, another: CopilotClient, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "resumed.txt").write_text("I am in the resumed directory", encoding="utf-8")
    model.on("Read resumed.txt", calls("view", path="resumed.txt"), says("{last_tool_result}"))
    first = await client.create_session(**approving())
    second = await another.resume_session(first.session_id, **approving(working_directory=str(tmp_path)))
    assert "resumed directory" in await reply_to(second, "Read resumed.txt")


async def test_a_working_directory_that_does_not_exist_is_refused(client: CopilotClient, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await client.create_session(**approving(working_directory=str(tmp_path / "nowhere")))


async def test_should_apply_system_message_on_session_resume(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("What are you told now?", says("This."))
    first = await client.create_session(**approving())
    instruction = "End the response with RESUME_SYSTEM_MESSAGE_SENTINEL."
    second = await another.resume_session(
        first.session_id, **approving(system_message={"mode": "append", "content": instruction})
    )
    await reply_to(second, "What are you told now?")
    assert instruction in system_text(model.last_call_about("What are you told now?"))


async def test_should_apply_available_tools_on_session_resume(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Which tools after resuming?", says("One."))
    first = await client.create_session(**approving())
    second = await another.resume_session(first.session_id, **approving(available_tools=["view"]))
    await reply_to(second, "Which tools after resuming?")
    assert tool_names(model.last_call_about("Which tools after resuming?")) == ["view"]


async def test_session_can_have_its_own_provider(client: CopilotClient, home: Home) -> None:
    async with Model() as own:
        own.on("Who answers?", says("My own provider."))
        provider: Any = {
            "type": "openai",
            "wire_api": "completions",
            "base_url": own.url,
            "api_key": "byok-secret-key",
            "headers": {"x-own": "header"},
        }
        session = await client.create_session(**approving(model="own-model", provider=provider))
        assert await reply_to(session, "Who answers?") == "My own provider."
        assert own.last_call_about("Who answers?")["model"] == "own-model"
        (headers,) = own.headers_about("Who answers?")
        assert headers["Authorization"] == "Bearer byok-secret-key"
        assert headers["x-own"] == "header"
    assert home.model.calls_about("Who answers?") == []


async def test_providers_key_is_not_stored(own_home: Home) -> None:
    async with Model() as own, own_home.serve() as server, connected(server.client()) as client:
        own.on("Keep my secret", says("Kept."))
        provider: Any = {
            "type": "openai", "wire_api": "completions", "base_url": own.url, "api_key": "byok-secret-key"
        }  # fmt: skip
        session = await client.create_session(**approving(model="own-model", provider=provider))
        await reply_to(session, "Keep my secret")
        assert "byok-secret-key" not in str(await ask(session, "session.getMessages"))
    for file in own_home.data.rglob("*"):
        assert not file.is_file() or b"byok-secret-key" not in file.read_bytes(), file


async def test_message_headers_are_sent_only_with_its_model_calls(client: CopilotClient, model: Model) -> None:
    model.on("With a header", says("Seen."))
    model.on("Without a header", says("Not seen."))
    session = await client.create_session(**approving())
    await reply_to(session, "With a header", request_headers={"x-copilot-sdk-test-header": "python-request-headers"})
    await reply_to(session, "Without a header")
    (sent,) = model.headers_about("With a header")
    assert sent["x-copilot-sdk-test-header"] == "python-request-headers"
    (sent,) = model.headers_about("Without a header")
    assert "x-copilot-sdk-test-header" not in sent


async def test_the_name_of_the_client_is_kept(client: CopilotClient, model: Model) -> None:
    model.on("Who sent me?", says("A test."))
    session = await client.create_session(**approving(client_name="a-test-of-names"))
    await reply_to(session, "Who sent me?")
    listed = await ask(client, "session.list")
    (found,) = [one for one in listed["sessions"] if one["sessionId"] == session.session_id]
    assert found["clientName"] == "a-test-of-names"


async def test_session_can_be_named_at_creation(client: CopilotClient) -> None:
    session = await client.create_session(**approving(name="Named from the start"))
    assert (await session.rpc.name.get()).name == "Named from the start"


async def test_the_reasoning_effort_given_at_the_start_is_used(client: CopilotClient, model: Model) -> None:
    model.on("How hard do you think?", says("Hard."))
    session = await client.create_session(**approving(model="scripted", reasoning_effort="high"))
    await reply_to(session, "How hard do you think?")
    assert model.last_call_about("How hard do you think?")["reasoning_effort"] == "high"


async def test_people_see_the_display_prompt_and_the_model_gets_the_prompt(client: CopilotClient, model: Model) -> None:
    model.on("The long prompt", says("Got it."))
    session = await client.create_session(**approving())
    await reply_to(session, "The long prompt", display_prompt="Short")
    (said,) = await history(session, UserMessageData)
    assert said.content == "Short"
    assert len(model.calls_about("The long prompt")) == 1


async def test_excluded_tools_win_over_available_ones(client: CopilotClient, model: Model) -> None:
    model.on("Which of them?", says("One."))
    session = await client.create_session(**approving(available_tools=["view", "bash"], excluded_tools=["bash"]))
    await reply_to(session, "Which of them?")
    assert tool_names(model.last_call_about("Which of them?")) == ["view"]
