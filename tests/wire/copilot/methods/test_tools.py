"""The tools of a session: listed, replaced, and asked for."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.models.scripted import ScriptedCall
from holdfast.tools.built_in import COPILOT_TOOLS
from tests.wire.copilot.methods.world import Client, Desk, Refused, Session, desk_at

pytestmark = pytest.mark.anyio

MINE = {"name": "mine", "description": "Mine", "parameters": {"type": "object"}, "skipPermission": True}
OTHER = {**MINE, "name": "other", "description": "Another one"}


async def _tools(session: Session) -> dict[str, Any]:
    return {found["name"]: found for found in (await session.ask("tools.getCurrentMetadata"))["tools"]}


async def test_the_tools_that_the_model_is_offered_are_listed(client: Client) -> None:
    session = await client.session(tools=[MINE], availableTools=["view", "mine"])
    found = await _tools(session)
    assert list(found) == ["view", "mine"]
    assert found["view"]["inputSchema"]["type"] == "object"
    assert found["mine"]["description"] == "Mine"
    assert await session.ask("tools.initializeAndValidate") == {}


async def test_all_built_in_tools_are_listed_with_what_they_take(session: Session) -> None:
    listed = (await session.client.ask("tools.list"))["tools"]
    described = (await session.ask("tools.getBuiltinDescriptors"))["tools"]
    assert [found["name"] for found in listed] == [found["name"] for found in described]
    assert tuple(found["name"] for found in listed) == COPILOT_TOOLS
    assert all(found["description"] and found["parameters"] for found in listed)


@pytest.mark.parametrize("available", [None, ["builtin:*"]])
async def test_commands_are_offered_under_copilots_names(client: Client, available: list[str] | None) -> None:
    found = await _tools(await client.session(requestUserInput=True, availableTools=available))
    assert tuple(found) == COPILOT_TOOLS


@pytest.mark.parametrize("named", ["exec", "builtin:exec"])
async def test_a_client_may_choose_holdfasts_own_names_for_commands(client: Client, named: str) -> None:
    assert list(await _tools(await client.session(availableTools=["view", named]))) == ["view", "exec"]


async def test_a_name_that_only_holdfast_uses_is_free_for_a_clients_own_tool(client: Client) -> None:
    session = await client.session(tools=[{**MINE, "name": "exec"}])
    assert (await _tools(session))["exec"]["description"] == "Mine"


async def test_a_clients_tools_are_replaced_by_others(client: Client) -> None:
    session = await client.session(tools=[MINE])
    assert await session.ask("tools.set", tools=[OTHER]) == {}
    assert {"mine", "other"} & set(await _tools(session)) == {"other"}
    await session.ask("tools.set", tools=[])
    assert {"mine", "other"} & set(await _tools(session)) == set()


async def test_the_tools_of_another_client_stay_and_can_not_be_taken(desk: Desk, client: Client) -> None:
    session = await client.session(tools=[MINE])
    another = desk.client()
    await another.ask("session.resume", sessionId=session.id, tools=[OTHER])
    theirs = Session(another, session.id, session.folder)
    with pytest.raises(Refused, match="External tool name clash: mine already registered by another connection"):
        await theirs.ask("tools.set", tools=[MINE])
    await theirs.ask("tools.set", tools=[])
    assert {"mine", "other"} & set(await _tools(session)) == {"mine"}


async def test_a_built_in_name_is_taken_only_on_purpose(session: Session) -> None:
    tool = {**MINE, "name": "view"}
    with pytest.raises(Refused, match='External tool "view" conflicts with a built-in tool'):
        await session.ask("tools.set", tools=[tool])
    await session.ask("tools.set", tools=[{**tool, "overridesBuiltInTool": True}])
    assert (await _tools(session))["view"]["description"] == "Mine"


async def test_calls_that_a_client_has_not_answered_are_listed(tmp_path: Path) -> None:
    async with desk_at(tmp_path, ScriptedCall("mine", {"x": 1}), "Done.") as desk:
        session = await desk.client().session(tools=[MINE])
        assert await session.ask("tools.listPendingRequests") == {"items": []}
        await session.ask("send", prompt="Use it")
        asked = await session.client.until("external_tool.requested")
        (found,) = (await session.ask("tools.listPendingRequests"))["items"]
        assert (found["requestId"], found["toolName"]) == (asked["requestId"], "mine")
        assert found["arguments"] == {"x": 1}
        await session.ask("tools.handlePendingToolCall", requestId=found["requestId"], result="Done")
        await session.client.until("session.idle")
        assert await session.ask("tools.listPendingRequests") == {"items": []}


async def test_a_tool_that_is_new_is_used_in_the_next_turn(tmp_path: Path) -> None:
    async with desk_at(tmp_path, ScriptedCall("other", {}), "{last_tool_result}") as desk:
        session = await desk.client().session()
        await session.ask("tools.set", tools=[OTHER])
        waiting = session.client.begin("session.sendAndWait", sessionId=session.id, prompt="Use it")
        asked = await session.client.until("external_tool.requested")
        await session.ask("tools.handlePendingToolCall", requestId=asked["requestId"], result="Used")
        assert (await waiting)["result"]["response"]["data"]["content"] == "Used"
