"""Features that this runtime lacks (hooks, elicitation, commands, agents, skills, MCP) are refused at once.

A session that requests them is created all the same, and works.
"""

from typing import Any

import pytest
from copilot import CopilotClient
from copilot._jsonrpc import JsonRpcError
from copilot.session import CommandDefinition

from tests.wire.copilot.harness import Heard, Model, approving, ask, patience, reply_to, says

pytestmark = pytest.mark.anyio

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("session.history.truncate", {"eventId": "missing-event"}),
    ("session.history.listRewindPoints", {}),
    ("session.history.rewind", {"eventId": "missing-event", "mode": "conversation"}),
    ("session.ui.elicitation", {"message": "Choose", "requestedSchema": {"type": "object", "properties": {}}}),
    ("session.commands.enqueue", {"command": "/nothing"}),
    ("session.commands.list", {}),
    ("session.commands.invoke", {"name": "nothing"}),
    ("session.commands.respondToQueuedCommand", {"requestId": "missing", "result": {"handled": True}}),
    ("session.agent.list", {}),
    ("session.agent.getCurrent", {}),
    ("session.agent.select", {"name": "nobody"}),
    ("session.skills.list", {}),
    ("session.skills.enable", {"name": "nothing"}),
    ("session.mcp.list", {}),
    ("session.mcp.enable", {"serverName": "missing-server"}),
    ("session.mcp.oauth.login", {"serverName": "missing-server"}),
    ("session.extensions.list", {}),
    ("session.plugins.list", {}),
    ("session.fleet.start", {"prompt": "Do it all"}),
    ("session.tasks.startAgent", {"agentType": "none", "name": "n", "prompt": "p"}),
    ("session.schedule.list", {}),
    ("session.lsp.initialize", {}),
    ("session.remote.enable", {"mode": "on"}),
]

OF_THE_SERVER: list[tuple[str, dict[str, Any]]] = [
    ("account.getQuota", {}),
    ("mcp.config.list", {}),
    ("mcp.discover", {}),
    ("skills.discover", {}),
    ("agents.discover", {}),
    ("plugins.list", {}),
    ("sessionFs.setProvider", {"initialCwd": "/", "sessionStatePath": "/", "conventions": "posix"}),
    ("llmInference.setProvider", {}),
]


async def answered(asker: Any, method: str, params: dict[str, Any]) -> None:
    """Check for a result, or for one of the two errors that clients know."""
    known = {-32601: f"Unhandled method {method}", -32603: f"Request {method} failed with message: "}
    try:
        await ask(asker, method, **params)
    except JsonRpcError as error:
        if not error.message.startswith(known.get(error.code, "?")):
            raise


@pytest.mark.parametrize(("method", "params"), METHODS, ids=[method for method, _ in METHODS])
async def test_absent_session_method_is_answered(client: CopilotClient, method: str, params: dict[str, Any]) -> None:
    session = await client.create_session(**approving())
    await answered(session, method, params)


@pytest.mark.parametrize(("method", "params"), OF_THE_SERVER, ids=[method for method, _ in OF_THE_SERVER])
async def test_absent_server_method_is_answered(client: CopilotClient, method: str, params: dict[str, Any]) -> None:
    await answered(client, method, params)


async def _never(*given: Any) -> Any:
    raise AssertionError(f"called with {given}")


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("hooks", {"hooks": {"on_pre_tool_use": _never}}),
    ("elicitation", {"on_elicitation_request": _never}),
    ("commands", {"commands": [CommandDefinition(name="deploy", handler=_never, description="Deploy the app")]}),
    ("agents", {"custom_agents": [{"name": "helper", "prompt": "You help."}], "agent": "helper"}),
    ("skills", {"skill_directories": ["/nowhere"], "disabled_skills": ["x"]}),
    ("mcp", {"mcp_servers": {"s": {"type": "stdio", "command": "false", "args": [], "tools": ["*"]}}}),
    ("plan mode", {"on_exit_plan_mode_request": _never, "on_auto_mode_switch_request": _never}),
    ("large output", {"large_output": {"enabled": True}}),
]


@pytest.mark.parametrize("options", [options for _, options in OPTIONS], ids=[name for name, _ in OPTIONS])
async def test_session_that_requests_an_absent_feature_works_or_is_refused_with_a_sentence(
    client: CopilotClient, model: Model, options: dict[str, Any]
) -> None:
    model.on("Work without it", says("Working."))
    try:
        session = await client.create_session(**approving(**options))
    except JsonRpcError as error:
        if "Request session.create failed with message:" not in error.message:
            raise
        return
    async with patience():
        assert await reply_to(session, "Work without it") == "Working."


async def test_session_capabilities_are_returned_on_creation(client: CopilotClient) -> None:
    session = await client.create_session(**approving(on_elicitation_request=_never))
    assert session.capabilities.get("ui", {}).get("elicitation", False) is False
    with pytest.raises(RuntimeError, match=r"(?i)elicitation"):
        await session.ui.confirm("Deploy to production?")


async def test_an_unknown_field_is_ignored(client: CopilotClient, model: Model) -> None:
    model.on("With a field from the future", says("Ignored."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    sent = await ask(session, "session.send", prompt="With a field from the future", aFieldOfTheFuture={"x": [1]})
    assert sent["messageId"]
    await heard.until_idle()
