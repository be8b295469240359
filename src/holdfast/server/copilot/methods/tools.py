"""The tools that a session's model is offered: ours, and those that its clients run."""

from typing import Any

import msgspec

from holdfast.events import codec
from holdfast.events.context import ToolSpec
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.options import SessionParams, ToolOptions
from holdfast.server.presence import ANSWERS_QUESTIONS, Arrival
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import State
from holdfast.tools.built_in import BUILT_IN, COPILOT_TOOLS
from holdfast.tools.registry import Registry


def offered(call: RpcCall, state: State) -> tuple[ToolSpec, ...]:
    """What a session's model is told of."""
    return _ours(call).offered(state.tools, state.client_tools)


def _ours(call: RpcCall) -> Registry:
    return Registry(found for found in BUILT_IN if found.name in call.service.settings.built_in)


async def offer_again(call: RpcCall, attached: Attached, params: SessionParams) -> None:
    """The client that is attached now runs these tools, and no others. Raises `Conflict` if another one has one."""
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
    await offer_again(call, attached, params)
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
        found = reply.call(request.tool_call_id) if reply else None
        if request.kind == "client_tool" and found is not None:
            asked = {"requestId": request.request_id, "toolCallId": found.tool_call_id, "toolName": found.name}
            items.append({**asked, "arguments": codec.arguments(found.arguments)})
    return {"items": items}


@method("session.tools.getBuiltinDescriptors")
async def get_built_in(call: RpcCall) -> Any:
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
            for spec in _ours(call).offered(COPILOT_TOOLS, ())
        ]
    }


@method("tools.list")
async def list_tools(call: RpcCall) -> Any:
    return {
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in _ours(call).offered(COPILOT_TOOLS, ())
        ]
    }
