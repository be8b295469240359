"""Calls about all sessions: lists, filters, metadata, the last session, deletion."""

import os

import pytest
from copilot import CopilotClient
from copilot.client import SessionListFilter

from tests.wire.copilot.harness import Home, Model, approving, ask, reply_to, running, says

pytestmark = pytest.mark.anyio


async def test_should_delete_session_by_id(client: CopilotClient, model: Model) -> None:
    model.on("Delete me", says("Oh."))
    session = await client.create_session(**approving())
    await reply_to(session, "Delete me")
    await client.delete_session(session.session_id)
    assert await client.get_session_metadata(session.session_id) is None
    assert session.workspace_path is not None
    assert session.session_id not in os.listdir(session.workspace_path.parent)


async def test_should_report_error_when_deleting_unknown_session_id(client: CopilotClient) -> None:
    with pytest.raises(RuntimeError, match="delete session unknown-id: Session file not found for unknown-id"):
        await client.delete_session("unknown-id")


async def test_should_get_null_last_session_id_before_any_sessions_exist(own_home: Home) -> None:
    async with running(own_home.stdio()) as client:
        assert await client.get_last_session_id() is None
        assert await client.list_sessions() == []


async def test_sessions_can_be_listed_by_their_working_directory(
    client: CopilotClient, home: Home, model: Model
) -> None:
    model.on("Where am I working?", says("There."))
    elsewhere = home.folder / "elsewhere"
    elsewhere.mkdir()
    session = await client.create_session(**approving(working_directory=str(elsewhere)))
    await reply_to(session, "Where am I working?")
    found = await client.list_sessions(SessionListFilter(working_directory=str(elsewhere)))
    assert [one.session_id for one in found] == [session.session_id]


async def test_last_session_is_the_most_recently_used(client: CopilotClient, model: Model) -> None:
    model.on("Use me", says("Used."))
    first = await client.create_session(**approving())
    second = await client.create_session(**approving())
    await reply_to(first, "Use me")
    await reply_to(second, "Use me")
    assert await client.get_last_session_id() == second.session_id
    await reply_to(first, "Use me")
    assert await client.get_last_session_id() == first.session_id


async def test_there_is_no_foreground_session(client: CopilotClient) -> None:
    assert await client.get_foreground_session_id() is None


async def test_the_built_in_tools_are_listed(client: CopilotClient) -> None:
    listed = await ask(client, "tools.list")
    names = [tool["name"] for tool in listed["tools"]]
    assert {"bash", "view", "create", "edit", "grep", "glob"} <= set(names)
    assert all(tool["description"] for tool in listed["tools"])


async def test_a_ping_without_a_message_is_answered(client: CopilotClient) -> None:
    assert (await client.ping()).protocol_version == 3


async def test_session_list_is_complete(own_home: Home, model: Model) -> None:
    model.on("One of many", says("Yes."))
    async with running(own_home.stdio()) as client:
        made = []
        for _ in range(60):
            session = await client.create_session(**approving())
            await reply_to(session, "One of many")
            made.append(session.session_id)
        assert sorted(found.session_id for found in await client.list_sessions()) == sorted(made)
