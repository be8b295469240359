"""Absent features are reported as absent: no call hangs, and none is silently replaced by something else."""

from typing import Any

import pytest

from holdfast.server.copilot.methods.absent import EMPTY, UNSUPPORTED
from holdfast.server.copilot.surface import METHODS, find_method
from tests.wire.copilot.methods.world import Client, Refused, Session

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", sorted(EMPTY))
async def test_absent_feature_answers_as_empty(session: Session, name: str) -> None:
    assert await session.client.ask(name, sessionId=session.id) == EMPTY[name]


@pytest.mark.parametrize("name", sorted(name for name in EMPTY if name.startswith("session.")))
async def test_client_that_is_not_attached_gets_session_not_found(client: Client, name: str) -> None:
    with pytest.raises(Refused, match="Session not found: nope"):
        await client.ask(name, sessionId="nope")


REFUSED: list[tuple[str, str]] = [
    ("llmInference.setProvider", "Making model calls through the client is"),
    ("sessionFs.setProvider", "Keeping a session's files at the client is"),
    ("registerExtensionLaunchProvider", "Extensions are"),
    ("session.tasks.register", "Client-defined tasks are"),
    ("session.tasks.update", "Client-defined tasks are"),
    ("session.mcp.startServer", "MCP servers are"),
    ("session.mcp.apps.callTool", "MCP servers are"),
    ("session.agent.select", "Custom agents are"),
    ("session.skills.enable", "Skills are"),
    ("session.plugins.marketplaces.add", "Plugins are"),
    ("session.remote.enable", "Remote control is"),
    ("session.schedule.addCron", "Scheduled prompts are"),
    ("session.workflow.run", "Workflows are"),
    ("session.canvas.action.invoke", "Canvases are"),
]


@pytest.mark.parametrize(("name", "what"), REFUSED)
async def test_absent_action_is_refused(session: Session, name: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        await session.client.ask(name, sessionId=session.id)
    assert refused.value.code == -32603
    assert refused.value.message == f"Request {name} failed with message: {what} not supported by this runtime"


@pytest.mark.parametrize("name", ["makeCoffee", "session.makeCoffee", "session", "sessionx.mcp", "mcpx.list", ""])
async def test_unknown_method_has_no_handler(client: Client, name: str) -> None:
    assert find_method(name) is None
    if name:
        with pytest.raises(Refused, match=f"Unhandled method {name}") as refused:
            await client.ask(name)
        assert refused.value.code == -32601


def test_no_refused_prefix_is_itself_a_method() -> None:
    assert [name for name in UNSUPPORTED if name in METHODS] == []


async def test_elicitation_is_refused_with_the_sentence_that_clients_expect(session: Session) -> None:
    with pytest.raises(Refused, match="Elicitation is not supported by the host"):
        await session.ask("ui.elicitation", message="Choose", requestedSchema={"type": "object", "properties": {}})


async def test_mcp_login_is_refused_without_a_host(session: Session) -> None:
    with pytest.raises(Refused, match="MCP host is not available on this session"):
        await session.ask("mcp.oauth.login", serverName="missing-server")


async def test_starting_an_agent_is_refused(session: Session) -> None:
    with pytest.raises(Refused, match=r"Unknown agent type: helper\. There are no agent types in this runtime"):
        await session.ask("tasks.startAgent", agentType="helper", name="n", prompt="p")


async def test_a_switch_handler_is_unregistered_once(session: Session) -> None:
    handle = (await session.ask("ui.registerDirectAutoModeSwitchHandler"))["handle"]
    assert await session.ask("ui.unregisterDirectAutoModeSwitchHandler", handle=handle) == {"unregistered": True}
    assert await session.ask("ui.unregisterDirectAutoModeSwitchHandler", handle=handle) == {"unregistered": False}


OPTIONS: list[dict[str, Any]] = [
    {"hooks": True},
    {"commands": [{"name": "deploy"}], "requestElicitation": True, "requestExitPlanMode": True},
    {"mcpServers": {"s": {"command": "false"}}, "customAgents": [{"name": "a"}], "skillDirectories": ["/x"]},
]


@pytest.mark.parametrize("options", OPTIONS)
async def test_session_that_requests_absent_features_works_without_them(
    client: Client, options: dict[str, Any]
) -> None:
    session = await client.session(**options)
    assert await session.say("Hello") == "Yes."
    kinds = {event["type"] for event in client.told}
    assert not {"hook.start", "commands.changed"} & kinds
