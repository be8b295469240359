"""Methods of GitHub's runtime for features that this runtime lacks, each answered at once and truthfully.

Listing methods return empty lists, and there is never anything to stop, remove or answer. Methods that would have to do
something fail with "not supported". Methods in neither table are unknown.
"""

from typing import Any, Final

from holdfast.events.ids import random_id
from holdfast.server.copilot.call import Function, RpcCall, method
from holdfast.server.copilot.peer import RpcError

EMPTY: Final[dict[str, Any]] = {
    # Agents, skills, extensions, plugins, canvases, instructions.
    "session.agent.deselect": None,
    "session.agent.getCurrent": {},
    "session.agent.list": {"agents": []},
    "session.agent.reload": {"agents": []},
    "session.cancelAllBackgroundAgents": 0,
    "session.skills.ensureLoaded": None,
    "session.skills.getInvoked": {"skills": []},
    "session.skills.list": {"skills": []},
    "session.skills.reload": {"errors": [], "warnings": []},
    "session.extensions.list": {"extensions": []},
    "session.extensions.reconcile": {"extensions": []},
    "session.extensions.reload": None,
    "session.plugins.list": {"plugins": []},
    "session.plugins.marketplaces.list": {"marketplaces": []},
    "session.plugins.reload": None,
    "session.canvas.list": {"canvases": []},
    "session.canvas.listOpen": {"openCanvases": []},
    "session.instructions.getSources": {"sources": []},
    "session.instructions.reload": {"sources": []},
    "session.customizations.reload": {"errors": [], "outcomes": [], "warnings": []},
    "session.tools.getSubagentSettings": {},
    "agents.discover": {"agents": []},
    "agents.getDiscoveryPaths": {"paths": []},
    "skills.discover": {"skills": []},
    "skills.getDiscoveryPaths": {"paths": []},
    "instructions.clearCache": None,
    "instructions.discover": {"sources": []},
    "instructions.getDiscoveryPaths": {"paths": []},
    "hooks.discover": {"errors": [], "hooks": [], "warnings": []},
    "extensions.discover": {"extensions": [], "mode": "disabled"},
    "plugins.builtin.set": None,
    "plugins.list": {"plugins": []},
    "plugins.marketplaces.list": {"marketplaces": []},
    # Commands.
    "commands.list": {"commands": []},
    "session.commands.list": {"commands": []},
    "session.commands.enqueue": {"queued": False, "queueId": None},
    "session.commands.handlePendingCommand": {"success": True},
    "session.commands.respondToQueuedCommand": {"success": False},
    "session.completions.getTriggerCharacters": {"triggerCharacters": []},
    "session.completions.request": {"items": []},
    # Agents as tasks, schedules, workflows, fleets.
    "session.tasks.sendMessage": {"sent": False, "error": "Agent not found or not accepting messages"},
    "session.schedule.hasSelfPaced": {"hasSelfPaced": False},
    "session.schedule.hydrate": None,
    "session.schedule.list": {"entries": []},
    "session.schedule.stop": {},
    "session.workflow.listRuns": {"runs": []},
    "session.fleet.start": {"started": False},
    "session.autopilotObjective.getState": {},
    # MCP.
    "mcp.config.list": {"servers": {}},
    "mcp.config.reload": None,
    "mcp.discover": {"servers": []},
    "session.mcp.cancelSamplingExecution": {"cancelled": False},
    "session.mcp.headers.handlePendingHeadersRefreshRequest": {"success": False},
    "session.mcp.isServerRunning": {"running": False},
    "session.mcp.list": {"servers": []},
    "session.mcp.listConfigured": {"servers": []},
    "session.mcp.moveLoadingToBackground": {"movedToBackground": False},
    "session.mcp.oauth.cancelLogin": {"cancelled": False},
    "session.mcp.oauth.handlePendingRequest": {"success": False},
    "session.mcp.oauth.respond": {"success": False},
    "session.mcp.reload": None,
    "session.mcp.removeGitHub": {"removed": False},
    # Requests to people that only GitHub's runtime makes.
    "session.ui.handleHumanAskUser": {"success": False},
    "session.ui.handleHumanExitPlanMode": {"success": False},
    "session.ui.handleHumanUserInput": {"success": False},
    "session.ui.handlePendingAutoModeSwitch": {"success": False},
    "session.ui.handlePendingElicitation": {"success": False},
    "session.ui.handlePendingExitPlanMode": {"success": False},
    "session.ui.handlePendingSampling": {"success": False},
    "session.ui.handlePendingSessionLimitsExhausted": {"success": False},
    "session.history.summarizeForHandoff": {"summary": ""},
    # Parts of features that this runtime has.
    "session.metadata.getClientMetadata": {},
    "session.metadata.getContextAttribution": {},
    "session.plan.readSqlTodos": {"rows": []},
    "session.plan.readSqlTodosWithDependencies": {"rows": [], "dependencies": []},
    "session.workspaces.autopilotObjectiveExists": {"exists": False},
    "session.workspaces.deleteAutopilotObjective": {"deleted": False},
    "session.workspaces.listCheckpoints": {"checkpoints": []},
    "session.workspaces.readAutopilotObjective": {"content": None},
    "session.workspaces.readCheckpoint": {"content": None},
    # GitHub, telemetry, remote control.
    "account.getAllUsers": [],
    "account.getCurrentAuth": {},
    "session.gitHubAuth.getAllAuthAvailable": [],
    "session.gitHubAuth.getCurrentAuthInfo": None,
    "session.gitHubAuth.lastAuthErrors": [],
    "session.quota.takeWarnings": [],
    "session.lsp.initialize": None,
    "session.telemetry.getEngagementId": {},
    "session.telemetry.setFeatureOverrides": None,
    "session.remote.disable": None,
    "session.remote.notifySteerableChanged": {},
    "session.visibility.get": {"synced": False},
    "sessions.findByTaskId": {},
    "sessions.getBoardEntryCount": {},
    "sessions.getPersistedRemoteSteerable": {},
    "sessions.releaseLock": {},
    "sessions.save": {},
}
"""The constant answer of each method. A method of a session requires that the client is attached to it."""

UNSUPPORTED: Final[dict[str, str]] = {
    "account": "Signing in is",
    "agentRegistry": "Custom agents are",
    "agents": "Custom agents are",
    "catalog": "Catalogues are",
    "commands": "Commands are",
    "connectors": "Connectors are",
    "extensions": "Extensions are",
    "hooks": "Hooks are",
    "instructions": "Instruction files are",
    "llmInference": "Making model calls through the client is",
    "mcp": "MCP servers are",
    "plugins": "Plugins are",
    "registerExtensionLaunchProvider": "Extensions are",
    "sandbox": "A sandbox is",
    "sessionFs": "Keeping a session's files at the client is",
    "skills": "Skills are",
    "session.accounts": "Signing in is",
    "session.agent": "Custom agents are",
    "session.canvas": "Canvases are",
    "session.commands": "Commands are",
    "session.connectors": "Connectors are",
    "session.extensions": "Extensions are",
    "session.fleet": "Fleets are",
    "session.gitHubAuth": "Signing in is",
    "session.history": "This way of changing a history is",
    "session.mcp": "MCP servers are",
    "session.metadata": "Metadata of this kind is",
    "session.model": "Routing between models is",
    "session.permissions": "This way of setting permissions is",
    "session.plugins": "Plugins are",
    "session.provider": "Adding providers to a session is",
    "session.providers": "Finding providers is",
    "session.queue": "This way of changing the queue is",
    "session.quota": "A quota is",
    "session.remote": "Remote control is",
    "session.sandbox": "A sandbox is",
    "session.schedule": "Scheduled prompts are",
    "session.sendSystemNotification": "Sending notifications to the model is",
    "session.shell": "This way of running commands is",
    "session.skills": "Skills are",
    "session.tasks": "Client-defined tasks are",
    "session.tools": "This way of using tools is",
    "session.ui": "This way of asking people is",
    "session.usage": "Counting a client's changes is",
    "session.visibility": "Sharing sessions is",
    "session.workflow": "Workflows are",
    "session.workspaces": "This use of the workspace is",
    "sessions": "This way of handling sessions is",
}
"""Refused methods by name prefix, with the beginning of the error sentence."""


def constant(answer: Any) -> Function:
    """The function that gives this answer to every request."""

    async def answer_method(call: RpcCall) -> Any:
        if call.method.startswith("session."):
            call.attached()
        return answer

    return answer_method


def refusal(feature: str) -> Function:
    """The function that refuses every request, because the runtime lacks the feature."""

    async def answer_method(call: RpcCall) -> Any:
        raise not_supported(call, feature)

    return answer_method


def not_supported(call: RpcCall, feature: str) -> RpcError:
    return call.failed(f"{feature} not supported by this runtime")


@method("session.ui.elicitation")
async def elicit(call: RpcCall) -> Any:
    """Refuse to show a form. Clients that check the capability never call this."""
    call.attached()
    raise call.failed("Elicitation is not supported by the host")


@method("session.mcp.oauth.login")
async def log_in_to_mcp(call: RpcCall) -> Any:
    call.attached()
    raise call.failed("MCP host is not available on this session")


@method("session.tasks.startAgent")
async def start_agent(call: RpcCall) -> Any:
    call.attached()
    raise call.failed(f"Unknown agent type: {call.text('agentType')}. There are no agent types in this runtime")


@method("session.commands.execute")
async def execute_command(call: RpcCall) -> Any:
    call.attached()
    return {"error": f"Unknown command: {call.param('commandName', str, '')}"}


@method("session.ui.registerDirectAutoModeSwitchHandler")
async def register_switch_handler(call: RpcCall) -> Any:
    """Register a handler for reaching a model's limit. This runtime never calls it."""
    attached = call.attached()
    attached.switch_handler = f"dams-{random_id()}"
    return {"handle": attached.switch_handler}


@method("session.ui.unregisterDirectAutoModeSwitchHandler")
async def unregister_switch_handler(call: RpcCall) -> Any:
    attached, handle = call.attached(), call.text("handle")
    was_registered = attached.switch_handler == handle
    attached.switch_handler = None if was_registered else attached.switch_handler
    return {"unregistered": was_registered}
