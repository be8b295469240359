"""Missing requests and missing tasks are reported as missing, never as an error."""

from typing import Any

import pytest
from copilot import CopilotClient

from tests.wire.copilot.harness import approving, ask

pytestmark = pytest.mark.anyio

MISSING: list[tuple[str, dict[str, Any], Any]] = [
    ("session.tools.handlePendingToolCall", {"requestId": "missing", "result": "x"}, {"success": False}),
    ("session.tools.handlePendingToolCall", {"requestId": "missing", "error": "x"}, {"success": False}),
    (
        "session.permissions.handlePendingPermissionRequest",
        {"requestId": "missing", "result": {"kind": "approve-once"}},
        {"success": False},
    ),
    (
        "session.ui.handlePendingUserInput",
        {"requestId": "missing", "response": {"answer": "a", "wasFreeform": True}},
        {"success": False},
    ),
    (
        "session.ui.handlePendingElicitation",
        {"requestId": "missing", "result": {"action": "cancel"}},
        {"success": False},
    ),
    ("session.ui.handlePendingAutoModeSwitch", {"requestId": "missing", "response": "no"}, {"success": False}),
    (
        "session.ui.handlePendingExitPlanMode",
        {"requestId": "missing", "response": {"approved": True, "selectedAction": "interactive"}},
        {"success": False},
    ),
    ("session.commands.handlePendingCommand", {"requestId": "missing", "error": "x"}, {"success": True}),
]

TASKS: list[tuple[str, dict[str, Any], Any]] = [
    ("session.tasks.list", {}, {"tasks": []}),
    ("session.tasks.cancel", {"id": "missing"}, {"cancelled": False}),
    ("session.tasks.remove", {"id": "missing"}, {"removed": False}),
    ("session.tasks.promoteToBackground", {"id": "missing"}, {"promoted": False}),
    ("session.tasks.getProgress", {"id": "missing"}, {"progress": None}),
    ("session.tasks.getCurrentPromotable", {}, {}),
    ("session.tasks.promoteCurrentToBackground", {}, {}),
    ("session.tasks.refresh", {}, {}),
    ("session.tasks.waitForPending", {}, {}),
]


@pytest.mark.parametrize(("method", "params", "expected"), MISSING, ids=[f"{m} {list(p)[1]}" for m, p, _ in MISSING])
async def test_answer_to_a_missing_request_is_unsuccessful(
    client: CopilotClient, method: str, params: dict[str, Any], expected: Any
) -> None:
    session = await client.create_session(**approving())
    assert await ask(session, method, **params) == expected


@pytest.mark.parametrize(("method", "params", "expected"), TASKS, ids=[method for method, _, _ in TASKS])
async def test_missing_task_is_reported_as_missing(
    client: CopilotClient, method: str, params: dict[str, Any], expected: Any
) -> None:
    session = await client.create_session(**approving())
    assert await ask(session, method, **params) == expected


async def test_message_to_a_missing_task_reports_that(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    result = await ask(session, "session.tasks.sendMessage", id="missing", message="hello")
    assert result["sent"] is False
    assert result["error"]
