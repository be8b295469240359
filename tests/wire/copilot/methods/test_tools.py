"""The tools of a session: listing, replacing and calling them."""

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


async def test_offered_tools_are_listed(client: Client) -> None:
    session = await client.session(tools=[MINE], availableTools=["view", "mine"])
    found = await _tools(session)
    assert list(found) == ["view", "mine"]
    assert found["view"]["inputSchema"]["type"] == "object"
    assert found["mine"]["description"] == "Mine"
    assert await session.ask("tools.initializeAndValidate") == {}


async def test_built_in_tools_are_listed_with_their_parameters(session: Session) -> None:
    listed = (await session.client.ask("tools.list"))["tools"]
    described = (await session.ask("tools.getBuiltinDescriptors"))["tools"]
    assert [found["name"] for found in listed] == [found["name"] for found in described]
    assert tuple(found["name"] for found in listed) == COPILOT_TOOLS
    assert all(found["description"] and found["parameters"] for found in listed)


@pytest.mark.parametrize("available", [None, ["builtin:*"]])
async def test_shell_tools_are_offered_under_copilots_names(client: Client, available: list[str] | None) -> None:
    found = await _tools(await client.session(requestUserInput=True, availableTools=available))
    assert tuple(found) == COPILOT_TOOLS


@pytest.mark.parametrize("named", ["exec", "builtin:exec"])
async def test_client_can_choose_holdfasts_own_shell_tools(client: Client, named: str) -> None:
    assert list(await _tools(await client.session(availableTools=["view", named]))) == ["view", "exec"]


async def test_name_of_a_holdfast_only_tool_is_free_for_client_tools(client: Client) -> None:
    session = await client.session(tools=[{**MINE, "name": "exec"}])
    assert (await _tools(session))["exec"]["description"] == "Mine"


async def test_clients_tools_can_be_replaced(client: Client) -> None:
    session = await client.session(tools=[MINE])
    assert await session.ask("tools.set", tools=[OTHER]) == {}
    assert {"mine", "other"} & set(await _tools(session)) == {"other"}
    await session.ask("tools.set", tools=[])
    assert {"mine", "other"} & set(await _tools(session)) == set()


async def test_tools_of_another_client_stay_and_their_names_are_refused(desk: Desk, client: Client) -> None:
    session = await client.session(tools=[MINE])
    another = desk.client()
    await another.ask("session.resume", sessionId=session.id, tools=[OTHER])
    theirs = Session(another, session.id, session.folder)
    with pytest.raises(Refused, match="External tool name clash: mine already registered by another connection"):
        await theirs.ask("tools.set", tools=[MINE])
    await theirs.ask("tools.set", tools=[])
    assert {"mine", "other"} & set(await _tools(session)) == {"mine"}


async def test_built_in_tool_name_needs_an_explicit_override(session: Session) -> None:
    tool = {**MINE, "name": "view"}
    with pytest.raises(Refused, match='External tool "view" conflicts with a built-in tool'):
        await session.ask("tools.set", tools=[tool])
    await session.ask("tools.set", tools=[{**tool, "overridesBuiltInTool": True}])
    assert (await _tools(session))["view"]["description"] == "Mine"


async def test_unanswered_client_tool_calls_are_listed(tmp_path: Path) -> None:
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


FULL: dict[str, Any] = {"auth": "keys", "max_bytes_per_owner": 20_000}


@pytest.mark.parametrize("answer", [{"result": "x" * 10_000}, {"error": "x" * 10_000}])
async def test_result_that_has_no_room_becomes_a_failure_with_the_reason_and_the_turn_goes_on(
    tmp_path: Path, answer: dict[str, str]
) -> None:
    async with desk_at(tmp_path, ScriptedCall("mine", {}), "{last_tool_result}", **FULL) as desk:
        session = await desk.client().session(tools=[MINE])
        waiting = session.client.begin("session.sendAndWait", sessionId=session.id, prompt="Use it")
        asked = await session.client.until("external_tool.requested")
        handled = await session.ask("tools.handlePendingToolCall", requestId=asked["requestId"], **answer)
        assert handled == {"success": True}
        told = (await waiting)["result"]["response"]["data"]["content"]
        assert "its result could not be stored. There is no room for this answer" in told
        (done,) = session.client.data("tool.execution_complete")
        assert done["success"] is False


async def test_new_tool_is_offered_in_the_next_turn(tmp_path: Path) -> None:
    async with desk_at(tmp_path, ScriptedCall("other", {}), "{last_tool_result}") as desk:
        session = await desk.client().session()
        await session.ask("tools.set", tools=[OTHER])
        waiting = session.client.begin("session.sendAndWait", sessionId=session.id, prompt="Use it")
        asked = await session.client.until("external_tool.requested")
        await session.ask("tools.handlePendingToolCall", requestId=asked["requestId"], result="Used")
        assert (await waiting)["result"]["response"]["data"]["content"] == "Used"
