"""A session's permissions: its mode, its open permission requests, and the approvals for a location."""

import asyncio
import os
from typing import Any, Final

from holdfast.events.session import SettingsChanged
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.methods.answers import approved_rules
from holdfast.server.copilot.methods.sessions import persisted
from holdfast.server.copilot.methods.tools import replace_tools
from holdfast.server.errors import Invalid
from holdfast.server.operations.grants import check_room
from holdfast.server.operations.settings import check_rules
from holdfast.session.permissions import EVERY_CALL
from holdfast.session.state import State
from holdfast.store.grants import GrantOrigin

ALLOW_ALL: Final = "allow-all"
MANUAL: Final = "manual"

PROMPTED: Final[tuple[str, ...]] = ("intention", "toolCallId", "canOfferSessionApproval")


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
    check_rules(rules)
    if not rules:
        raise Invalid(
            "approval_invalid",
            "This approval can't be kept: it is not for reading or writing, nor for programs that run nothing else. "
            "Approve such a command itself when it is asked about.",
        )
    origin = GrantOrigin(attached.key.session, attached.params.client_name or "", call.service.clock.now_ms())
    place = call.text("locationKey")
    check_room(await call.service.operations.store.grant(attached.key.owner, place, rules, origin=origin))
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
