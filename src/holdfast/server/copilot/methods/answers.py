"""Answers of clients: the result of a tool, a permission decision, a reply to a question. The first answer counts."""

from collections.abc import Collection
from typing import Any, Final

from holdfast.events.ids import RequestId
from holdfast.events.message import Image
from holdfast.events.request import Decision
from holdfast.events.tool import ToolError
from holdfast.server.copilot.attachments import decoded
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.session.permissions import command_in, custom_tool_rule
from holdfast.tools.shell_permissions import can_be_widened, summarize

RESULT_TYPES: Final[dict[str, ToolError | None]] = {
    "success": None,
    "failure": "failed",
    "rejected": "rejected",
    "denied": "denied",
    "timeout": "timeout",
}

DECISIONS: Final[dict[str, Decision]] = {
    "approve-once": "approved",
    "approved": "approved",
    "approve-for-session": "approved-for-session",
    "approve-read-only-for-session": "approved-for-session",
    "approve-for-location": "approved",
    "approve-permanently": "approved-for-session",
    "reject": "denied-interactively-by-user",
}

UNAVAILABLE: Final = "user-not-available"


@method("session.tools.handlePendingToolCall")
async def handle_tool_call(call: RpcCall) -> Any:
    attached = call.attached()
    request_id = RequestId(call.text("requestId"))
    if (error := call.params.get("error")) is not None:
        text = await _failure(call, attached, request_id, str(error))
        return await _answered(call, attached, request_id, text, "failed", ())
    result = call.params.get("result")
    if isinstance(result, str):
        return await _answered(call, attached, request_id, result, None, ())
    if not isinstance(result, dict) or not isinstance(result.get("textResultForLlm"), str):
        raise Invalid("result_invalid", "Set `result` to a string or an object with textResultForLlm, or set `error`.")
    kind = result.get("resultType", "success")
    if not isinstance(kind, str) or kind not in RESULT_TYPES:
        raise Invalid("result_invalid", f"{kind!r} is no resultType. Use one of {', '.join(RESULT_TYPES)}.")
    images = _images(result.get("binaryResultsForLlm") or [])
    return await _answered(call, attached, request_id, result["textResultForLlm"], RESULT_TYPES[kind], images)


async def _answered(
    call: RpcCall,
    attached: Attached,
    request_id: RequestId,
    text: str,
    error: ToolError | None,
    images: tuple[Image, ...],
) -> dict[str, bool]:
    try:
        await call.service.operations.answer_tool(
            attached.key, request_id, text, success=error is None, error=error, images=images
        )
    except (Conflict, NotFound):
        return {"success": False}
    return {"success": True}


async def _failure(call: RpcCall, attached: Attached, request_id: RequestId, error: str) -> str:
    """The text that the model reads about a client tool that failed."""
    state = await call.service.operations.state(attached.key)
    opened, reply = state.requests.get(request_id), state.reply()
    tool_call = reply.call(opened.tool_call_id) if opened and reply else None
    if tool_call is None:
        return error
    arguments = tool_call.arguments
    return f"Failed to execute `{tool_call.name}` tool with arguments: {arguments} due to error: Error: {error}"


def _images(results: Any) -> tuple[Image, ...]:
    """The images among a tool's binary results. Models can't be shown the others, which are dropped."""
    if not isinstance(results, list):
        raise Invalid("result_invalid", "binaryResultsForLlm must be a list.")
    return tuple(
        Image(media_type=result["mimeType"], data=decoded(result.get("data")))
        for result in results
        if isinstance(result, dict) and str(result.get("mimeType", "")).startswith("image/")
    )


@method("session.permissions.handlePendingPermissionRequest")
async def handle_permission(call: RpcCall) -> Any:
    attached = call.attached()
    request_id = RequestId(call.text("requestId"))
    result = call.param("result", dict[str, Any], {})
    kind = result.get("kind")
    if kind == UNAVAILABLE:
        return {"success": await call.service.decline(attached, request_id)}
    if not isinstance(kind, str) or kind not in DECISIONS:
        raise Invalid(
            "decision_invalid", f"{kind!r} is no decision. Use one of {', '.join((*DECISIONS, UNAVAILABLE))}."
        )
    rules = await _rules(call, attached, request_id, result.get("approval"))
    place, granted = await _lasting_grant(call, attached, request_id, result, rules)
    by = attached.params.client_name or ""
    if granted:
        await call.service.operations.check_grant(attached.key, place, granted, granted_by=by)
    try:
        await call.service.operations.decide_permission(
            attached.key,
            request_id,
            DECISIONS[kind],
            feedback=str(result.get("feedback") or ""),
            rules=rules,
            place=place if granted else None,
        )
    except (Conflict, NotFound):
        return {"success": False}
    if granted:
        # After a crash before this write the answer itself stands, and the next session asks again.
        await call.service.operations.grant(attached.key, place, granted, granted_by=by)
    return {"success": True}


async def _lasting_grant(
    call: RpcCall, attached: Attached, request_id: RequestId, result: dict[str, Any], rules: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """The rules that later sessions get too, and the place where they hold; an empty place means everywhere."""
    kind = result["kind"]
    if kind not in ("approve-for-location", "approve-permanently"):
        return "", ()
    state = await call.service.operations.state(attached.key)
    opened = state.requests.get(request_id)
    granted = rules or ((opened.rule,) if opened else ())
    if kind == "approve-permanently":
        return "", granted
    return str(result.get("locationKey") or state.working_directory or ""), granted


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


@method("session.ui.handlePendingUserInput")
async def handle_user_input(call: RpcCall) -> Any:
    attached = call.attached()
    response = call.param("response", dict[str, Any], {})
    if not isinstance(response.get("answer"), str):
        raise Invalid("response_invalid", "Set `response` to an object whose `answer` is a string.")
    try:
        await call.service.operations.answer_question(
            attached.key,
            RequestId(call.text("requestId")),
            response["answer"],
            was_freeform=bool(response.get("wasFreeform", True)),
        )
    except (Conflict, NotFound):
        return {"success": False}
    return {"success": True}
