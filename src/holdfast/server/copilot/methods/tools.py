"""The tools that a session's model is offered: the built-in ones, and those that its clients run, with the results."""

from typing import Any, Final

import msgspec

from holdfast.events import codec
from holdfast.events.context import ToolSpec
from holdfast.events.ids import RequestId
from holdfast.events.message import Image
from holdfast.events.tool import ToolError
from holdfast.server.copilot.attachments import decoded
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.options import SessionParams, ToolOptions
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.operations.requests import NO_ROOM
from holdfast.server.presence import ANSWERS_QUESTIONS, Arrival
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import State
from holdfast.tools.built_in import BUILT_IN, COPILOT_TOOLS
from holdfast.tools.registry import Registry

RESULT_TYPES: Final[dict[str, ToolError | None]] = {
    "success": None,
    "failure": "failed",
    "rejected": "rejected",
    "denied": "denied",
    "timeout": "timeout",
}


def offered(call: RpcCall, state: State) -> tuple[ToolSpec, ...]:
    """The tools that a session's model is offered."""
    return _built_in(call).offered(state.tools, state.client_tools)


def _built_in(call: RpcCall) -> Registry:
    return Registry(tool for tool in BUILT_IN if tool.name in call.service.settings.built_in)


async def replace_tools(call: RpcCall, attached: Attached, params: SessionParams) -> None:
    """Replace the tools and capabilities of an attached client. Raises `Conflict` if another client runs such a
    tool."""
    arrival = Arrival(
        attachment_id=attached.member.attachment_id,
        tools=params.client_tools(frozenset(call.service.settings.built_in)),
        capabilities=(
            *((ANSWERS_PERMISSIONS,) if attached.answers_permissions else ()),
            *((ANSWERS_QUESTIONS,) if attached.member.answers_questions else ()),
        ),
    )
    await call.service.presence.replace_tools(attached.key, arrival)


@method("session.tools.set")
async def set_tools(call: RpcCall) -> Any:
    attached = call.attached()
    tools = tuple(call.param("tools", list[ToolOptions], []))
    params = msgspec.structs.replace(attached.params, tools=tools)
    await replace_tools(call, attached, params)
    attached.params = params
    return {}


@method("session.tools.getCurrentMetadata")
async def get_current_metadata(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    return {
        "tools": [
            {"name": spec.name, "description": spec.description, "inputSchema": spec.parameters}
            for spec in offered(call, state)
        ]
    }


@method("session.tools.initializeAndValidate")
async def initialize(call: RpcCall) -> Any:
    call.attached()
    return {}


@method("session.tools.listPendingRequests")
async def list_pending(call: RpcCall) -> Any:
    state = await call.service.operations.state(call.attached().key)
    reply = state.reply()
    items = []
    for request in state.requests.values():
        tool_call = reply.call(request.tool_call_id) if reply else None
        if request.kind == "client_tool" and tool_call is not None:
            item = {"requestId": request.request_id, "toolCallId": tool_call.tool_call_id, "toolName": tool_call.name}
            items.append({**item, "arguments": codec.arguments(tool_call.arguments)})
    return {"items": items}


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
    """Answer the call. A result for which there is no room becomes a failure that says so: these clients run a tool
    once and do not answer again, so the turn would wait for ever. A crash in between leaves the request open, as if
    the client had not answered."""
    answer_tool = call.service.operations.answer_tool
    try:
        try:
            await answer_tool(attached.key, request_id, text, success=error is None, error=error, images=images)
        except Conflict as refused:
            if refused.code != NO_ROOM:
                raise
            why = f"The tool has run, but its result could not be stored. {refused.message}"
            await answer_tool(attached.key, request_id, why, success=False, error="failed")
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


@method("session.tools.getBuiltinDescriptors")
async def get_built_in_descriptors(call: RpcCall) -> Any:
    call.attached()
    return {
        "tools": [
            {
                "name": spec.name,
                "description": spec.description,
                "inputSchema": spec.parameters,
                "isTerminal": False,
                "hasSummariseIntention": False,
                "safeForTelemetry": False,
            }
            for spec in _built_in(call).offered(COPILOT_TOOLS, ())
        ]
    }


@method("tools.list")
async def list_tools(call: RpcCall) -> Any:
    return {
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in _built_in(call).offered(COPILOT_TOOLS, ())
        ]
    }
