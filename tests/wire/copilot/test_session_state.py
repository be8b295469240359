"""A session's state through the typed calls of the client: model, mode, name, plan, files, metadata, usage."""

import pytest
from copilot import CopilotClient
from copilot.rpc import (
    MetadataSetWorkingDirectoryRequest,
    ModelSwitchToRequest,
    ModeSetRequest,
    NameSetAutoRequest,
    NameSetRequest,
    PlanUpdateRequest,
    SessionsForkRequest,
    WorkspacesCreateFileRequest,
    WorkspacesReadFileRequest,
)
from copilot.session_events import SessionMode, UserMessageData

from holdfast.models.model import TokenUsage
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
    tool_results,
)

pytestmark = pytest.mark.anyio


async def test_model_can_be_read_and_switched(client: CopilotClient) -> None:
    session = await client.create_session(**approving(model="claude-sonnet-4.5"))
    assert (await session.rpc.model.get_current()).model_id == "claude-sonnet-4.5"
    result = await ask(session, "session.model.switchTo", modelId="gpt-5.4", reasoningEffort="high")
    assert result["status"] == "applied"
    assert result["modelId"] == "gpt-5.4"
    current = await session.rpc.model.get_current()
    assert (current.model_id, current.reasoning_effort) == ("gpt-5.4", "high")


async def test_mode_is_a_plain_string(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    assert await ask(session, "session.mode.get") == "interactive"
    for mode in (SessionMode.PLAN, SessionMode.AUTOPILOT, SessionMode.INTERACTIVE):
        await session.rpc.mode.set(ModeSetRequest(mode=mode))
        assert await session.rpc.mode.get() == mode


async def test_the_name_can_be_set_and_an_automatic_one_does_not_replace_it(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    assert (await session.rpc.name.set_auto(NameSetAutoRequest(summary="  Auto name  "))).applied is True
    assert (await session.rpc.name.get()).name == "Auto name"
    await session.rpc.name.set(NameSetRequest(name="Explicit name"))
    assert (await session.rpc.name.set_auto(NameSetAutoRequest(summary="Auto again"))).applied is False
    assert (await session.rpc.name.get()).name == "Explicit name"


@pytest.mark.parametrize("name", ["", "   "])
async def test_an_empty_name_is_refused(client: CopilotClient, name: str) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(Exception, match="Session name cannot be empty"):
        await session.rpc.name.set(NameSetRequest(name=name))


async def test_a_plan_can_be_read_updated_and_deleted(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    plan = await session.rpc.plan.read()
    assert (plan.exists, plan.content) == (False, None)
    text = "# Test Plan\n\n- Step 1\n- Step 2"
    await session.rpc.plan.update(PlanUpdateRequest(content=text))
    plan = await session.rpc.plan.read()
    assert (plan.exists, plan.content) == (True, text)
    await session.rpc.plan.delete()
    assert (await session.rpc.plan.read()).exists is False


async def test_files_of_the_workspace_can_be_made_listed_and_read(client: CopilotClient) -> None:
    files = (await client.create_session(**approving())).rpc.workspaces
    assert (await files.list_files()).files == []
    await files.create_file(WorkspacesCreateFileRequest(content="Hello, workspace!", path="test.txt"))
    await files.create_file(WorkspacesCreateFileRequest(content="nested content", path="nested/subdir/file.txt"))
    assert sorted((await files.list_files()).files) == ["nested/subdir/file.txt", "test.txt"]
    assert (await files.read_file(WorkspacesReadFileRequest(path="test.txt"))).content == "Hello, workspace!"


@pytest.mark.parametrize("path", ["../escape.txt", "/etc/passwd", "a/../../b", "nested/../../../x"])
async def test_a_path_that_leaves_the_workspace_is_refused(client: CopilotClient, path: str) -> None:
    files = (await client.create_session(**approving())).rpc.workspaces
    with pytest.raises(Exception, match="Path must be within the workspace files directory"):
        await files.create_file(WorkspacesCreateFileRequest(content="x", path=path))
    with pytest.raises(Exception, match="Path must be within the workspace files directory"):
        await files.read_file(WorkspacesReadFileRequest(path=path))


async def test_metadata_snapshot_has_directory_and_start_time(client: CopilotClient, home: Home) -> None:
    session = await client.create_session(**approving())
    snapshot = await session.rpc.metadata.snapshot()
    assert snapshot.session_id == session.session_id
    assert snapshot.working_directory == str(home.work)
    assert snapshot.start_time <= snapshot.modified_time


async def test_processing_state_is_reported(client: CopilotClient, model: Model) -> None:
    model.on("Keep processing", says("Done."))
    hold = model.hold("Keep processing")
    session = await client.create_session(**approving())
    assert (await session.rpc.metadata.is_processing()).processing is False
    await session.send("Keep processing")
    await hold.until_reached()
    assert (await session.rpc.metadata.is_processing()).processing is True
    hold.release()


async def test_the_working_directory_can_be_changed(client: CopilotClient, home: Home, model: Model) -> None:
    second = home.work / "second"
    second.mkdir()
    (second / "here.txt").write_text("in the second", encoding="utf-8")
    model.on("Look here", calls("view", path="here.txt"), says("{last_tool_result}"))
    session = await client.create_session(**approving())
    request = MetadataSetWorkingDirectoryRequest(working_directory=str(second))
    assert (await session.rpc.metadata.set_working_directory(request)).working_directory == str(second)
    assert "in the second" in await reply_to(session, "Look here")


async def test_a_working_directory_that_does_not_exist_is_refused(client: CopilotClient, home: Home) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await ask(session, "session.metadata.setWorkingDirectory", workingDirectory=str(home.work / "nowhere"))


async def test_usage_is_summed(client: CopilotClient, model: Model) -> None:
    model.on("Spend a little", says("Spent.", usage=TokenUsage(input_tokens=100, output_tokens=10)))
    session = await client.create_session(**approving())
    before = await session.rpc.usage.get_metrics()
    assert before.total_user_requests == 0
    await reply_to(session, "Spend a little")
    await reply_to(session, "Spend a little")
    after = await session.rpc.usage.get_metrics()
    (metric,) = after.model_metrics.values()
    assert metric.requests.count == 2
    assert (metric.usage.input_tokens, metric.usage.output_tokens) == (200, 20)


async def test_the_tools_of_a_session_are_listed(client: CopilotClient) -> None:
    session = await client.create_session(**approving(available_tools=["view", "bash"]))
    await session.rpc.tools.initialize_and_validate()
    metadata = await session.rpc.tools.get_current_metadata()
    assert metadata.tools is not None
    assert {tool.name for tool in metadata.tools} == {"view", "bash"}


async def test_a_session_can_be_forked(client: CopilotClient, model: Model) -> None:
    model.on("FORK_SOURCE_ALPHA", says("FORK_SOURCE_ALPHA"))
    model.on("FORK_CHILD_BETA", says("FORK_CHILD_BETA"))
    session = await client.create_session(**approving())
    await reply_to(session, "Say FORK_SOURCE_ALPHA exactly.")
    forked = await client.rpc.sessions.fork(SessionsForkRequest(session_id=session.session_id))
    assert forked.session_id != session.session_id
    child = await client.resume_session(forked.session_id, **approving())
    await reply_to(child, "Now say FORK_CHILD_BETA exactly.")
    assert len(await history(child, UserMessageData)) == 2
    assert len(await history(session, UserMessageData)) == 1


async def test_settings_outlive_the_runtime(own_home: Home) -> None:
    async with own_home.serve() as server, connected(server.client()) as client:
        session = await client.create_session(**approving(model="gpt-4.1"))
        await session.rpc.model.switch_to(ModelSwitchToRequest(model_id="gpt-5.4"))
        await session.rpc.mode.set(ModeSetRequest(mode=SessionMode.PLAN))
        await session.rpc.name.set(NameSetRequest(name="Kept name"))
        await session.rpc.plan.update(PlanUpdateRequest(content="# Kept plan"))
        await server.kill()
    async with own_home.serve() as server, connected(server.client()) as client:
        again = await client.resume_session(session.session_id, **approving())
        assert (await again.rpc.model.get_current()).model_id == "gpt-5.4"
        assert await again.rpc.mode.get() == SessionMode.PLAN
        assert (await again.rpc.name.get()).name == "Kept name"
        assert (await again.rpc.plan.read()).content == "# Kept plan"


async def test_a_session_can_be_shut_down_and_resumed(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Before the shutdown", says("Yes."))
    model.on("After the shutdown", says("Again."))
    session = await client.create_session(**approving())
    await reply_to(session, "Before the shutdown")
    assert await ask(session, "session.shutdown", type="routine", reason="The test is over") is None
    again = await another.resume_session(session.session_id, **approving())
    assert await reply_to(again, "After the shutdown") == "Again."
    assert tool_results(model.last_call_about("After the shutdown")) == []
