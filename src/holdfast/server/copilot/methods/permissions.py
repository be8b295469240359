"""A session's permissions: its mode, its open permission requests with their answers, and the approvals for a
location."""

import asyncio
import os
from collections.abc import Collection
from typing import Any, Final

from holdfast.events.ids import RequestId
from holdfast.events.request import Decision
from holdfast.events.session import SettingsChanged
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.methods.event_log import persisted
from holdfast.server.copilot.methods.tools import replace_tools
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.operations.requests import LEAVES_OPEN
from holdfast.session.permissions import EVERY_CALL, command_in, custom_tool_rule
from holdfast.session.state import State
from holdfast.store.grants import GrantOrigin
from holdfast.tools.shell_permissions import can_be_widened, summarize

ALLOW_ALL: Final = "allow-all"
MANUAL: Final = "manual"

PROMPTED: Final[tuple[str, ...]] = ("intention", "toolCallId", "canOfferSessionApproval")

DECISIONS: Final[dict[str, Decision]] = {
    "approve-once": "approved",
    "approved": "approved",
    "approve-for-session": "approved-for-session",
    "approve-read-only-for-session": "approved-for-session",
    "approve-for-location": "approved",
    "approve-permanently": "approved-for-session",
    "reject": "denied-interactively-by-user",
}

LASTING: Final = frozenset({"approve-for-location", "approve-permanently"})
"""Decisions that hold for later sessions too."""

UNAVAILABLE: Final = "user-not-available"


@method("session.permissions.setApproveAll")
async def set_approve_all(call: RpcCall) -> Any:
    key = call.attached().key
    enabled = call.params.get("enabled")
    if not isinstance(enabled, bool):
        raise Invalid("params_invalid", "enabled is missing, or is neither true nor false.")
    await call.service.operations.allow_all(key, enabled=enabled)
    return {"success": True}


@method("session.permissions.getMode")
async def get_mode(call: RpcCall) -> Any:
    return {"mode": _mode(await call.service.operations.state(call.attached().key))}


@method("session.permissions.setMode")
async def set_mode(call: RpcCall) -> Any:
    """Switch between asking and allowing everything. Other modes, such as assisted approval, are not supported."""
    state = await call.service.operations.state(call.attached().key)
    mode = call.text("mode")
    if mode not in (ALLOW_ALL, MANUAL):
        return {"success": False, "mode": _mode(state)}
    await call.service.operations.allow_all(call.key, enabled=mode == ALLOW_ALL)
    return {"success": True, "mode": mode}


def _mode(state: State) -> str:
    return ALLOW_ALL if EVERY_CALL in state.allow else MANUAL


@method("session.permissions.resetSessionApprovals")
async def reset_approvals(call: RpcCall) -> Any:
    await call.service.operations.record(call.attached().key, SettingsChanged(allow=()))
    return {"success": True}


@method("session.permissions.setRequired")
async def set_required(call: RpcCall) -> Any:
    """Set whether this client answers permission requests."""
    attached = call.attached()
    attached.answers_permissions = call.param("required", bool, False)
    await replace_tools(call, attached, attached.params)
    return {"success": True}


@method("session.permissions.notifyPromptShown")
async def notify_prompt_shown(call: RpcCall) -> Any:
    call.attached()
    return {"success": True}


# Open requests


@method("session.permissions.pendingRequests")
async def pending_requests(call: RpcCall) -> Any:
    key = call.attached().key
    requests = await call.service.operations.requests(key)
    open_ids = {request.request_id for request in requests if request.kind == "permission"}
    if not open_ids:
        return {"items": []}
    return {
        "items": [
            {"requestId": wire.data["requestId"], "request": _prompt(wire.data["permissionRequest"])}
            for wire in await persisted(call, key)
            if wire.type == "permission.requested" and wire.data["requestId"] in open_ids
        ]
    }


def _prompt(request: dict[str, Any]) -> dict[str, Any]:
    """A permission request in the form that clients show to people. Only the form of a shell command differs."""
    if request["kind"] != "shell":
        return request
    commands = [item["identifier"] for item in request["commands"] if isinstance(item, dict) and "identifier" in item]
    kept = {name: request[name] for name in PROMPTED if name in request}
    return {**kept, "kind": "commands", "fullCommandText": request["fullCommandText"], "commandIdentifiers": commands}


# Answers to requests: the first one counts


@method("session.permissions.handlePendingPermissionRequest")
async def handle_permission(call: RpcCall) -> Any:
    attached = call.attached()
    request_id = RequestId(call.text("requestId"))
    result = call.param("result", dict[str, Any], {})
    kind = result.get("kind")
    if kind == UNAVAILABLE:
        return {"success": await call.service.presence.decline(attached.key, attached.member.attachment_id, request_id)}
    if not isinstance(kind, str) or kind not in DECISIONS:
        raise Invalid(
            "decision_invalid", f"{kind!r} is no decision. Use one of {', '.join((*DECISIONS, UNAVAILABLE))}."
        )
    rules = await _rules(call, attached, request_id, result.get("approval"))
    feedback = str(result.get("feedback") or "")
    try:
        if kind in LASTING:
            await call.service.operations.approve_always(
                attached.key,
                request_id,
                await _place(call, attached, result),
                decision=DECISIONS[kind],
                feedback=feedback,
                rules=rules,
                answered_by=attached.params.client_name or "",
            )
        else:
            await call.service.operations.decide_permission(
                attached.key, request_id, DECISIONS[kind], feedback=feedback, rules=rules
            )
    except (Conflict, NotFound) as error:
        if error.code in LEAVES_OPEN:
            raise
        return {"success": False}
    return {"success": True}


async def _place(call: RpcCall, attached: Attached, result: dict[str, Any]) -> str:
    """Where a lasting approval holds; the empty place is everywhere."""
    if result["kind"] == "approve-permanently":
        return ""
    state = await call.service.operations.state(attached.key)
    place = str(result.get("locationKey") or state.working_directory or "")
    if not place:
        raise Invalid("no_directory", "This session works in no directory: approve permanently, or for the session.")
    return place


async def _rules(call: RpcCall, attached: Attached, request_id: RequestId, approval: Any) -> tuple[str, ...]:
    """The rules that an approval of a request grants. Programs are limited to those in the request."""
    if not isinstance(approval, dict) or approval.get("kind") != "commands":
        return approved_rules(approval)
    opened = (await call.service.operations.state(attached.key)).requests.get(request_id)
    kind, _, subject = opened.asked_for.partition(" ") if opened else ("", "", "")
    commands = summarize(command_in(subject)).commands if kind == "shell" else ()
    return approved_rules(approval, among={command.identifier for command in commands})


def approved_rules(approval: Any, *, among: Collection[str] | None = None) -> tuple[str, ...]:
    """Permission rules for an approval that holds beyond one call; empty means the rule of the request itself. A
    program is approved with other arguments only if no argument could be code and all named programs are in `among`."""
    if not isinstance(approval, dict):
        return ()
    match approval.get("kind"):
        case "commands":
            names = approval.get("commandIdentifiers")
            if not isinstance(names, list) or not all(isinstance(name, str) and can_be_widened(name) for name in names):
                return ()
            if among is not None and not set(names) <= set(among):
                return ()
            return tuple(rule for name in names for rule in (f"shell({name})", f"shell({name} *)"))
        case "write":
            return ("write",)
        case "read":
            return ("read",)
        case "custom-tool" if isinstance(approval.get("toolName"), str):
            return (custom_tool_rule(approval["toolName"]),)
        case _:
            return ()


# Approvals for a location


@method("session.permissions.locations.resolve")
async def resolve_location(call: RpcCall) -> Any:
    call.attached()
    return {"locationKey": await _real(call.text("workingDirectory")), "locationType": "dir"}


@method("session.permissions.locations.addToolApproval")
async def add_approval(call: RpcCall) -> Any:
    """Grant rules to the sessions that are created or resumed in a location from now on."""
    attached = call.attached()
    rules = approved_rules(call.params.get("approval"))
    if not rules:
        raise Invalid(
            "approval_invalid",
            "This approval can't be kept: it is not for reading or writing, nor for programs that run nothing else. "
            "Approve such a command itself when it is asked about.",
        )
    origin = GrantOrigin(attached.key.session, attached.params.client_name or "", call.service.clock.now_ms())
    place = call.text("locationKey")
    await call.service.operations.grant(attached.key.owner, place, rules, origin)
    return {"success": True}


@method("session.permissions.paths.list")
async def list_paths(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    directory = state.working_directory or ""
    return {"directories": [directory], "primary": directory}


@method(
    "session.permissions.paths.isPathWithinWorkspace",
    "session.permissions.paths.isPathWithinAllowedDirectories",
)
async def is_within(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    if not state.working_directory:
        return {"allowed": False}
    directory = await _real(state.working_directory)
    path = await _real(os.path.join(directory, call.text("path")))
    return {"allowed": os.path.commonpath((directory, path)) == directory}


async def _real(path: str) -> str:
    if "\0" in path:
        raise Invalid("path_invalid", "A path can't have a NUL character in it.")
    try:
        return await asyncio.to_thread(os.path.realpath, path)
    except OSError as error:
        raise Invalid("path_invalid", f"This path can't be resolved: {error.strerror}.") from error
