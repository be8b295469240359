"""Imports: a new, idle session from an exported document."""

from typing import Final

from starlette.responses import Response

from holdfast.protocol.session import SessionView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.routes.sessions import created_session
from holdfast.server.http.wire import held_body
from holdfast.server.json_bounds import JsonBounds
from holdfast.server.operations.transfers import Exported, ImportBounds

EVENT_BOUNDS: Final = JsonBounds(values=10_000, size=4_000_000)
"""Of one event: enough for some two thousand tool calls in one answer, or a long result."""


@endpoint(
    "POST",
    "/v1/sessions/import",
    summary="A new, idle session from an exported document",
    body=Exported,
    results={201: SessionView},
)
async def import_document(call: HttpCall) -> Response:
    owner, settings = call.identity.owner, call.service.settings
    tools = call.policy.chosen_tools(None, settings.tools)
    bounds = ImportBounds(size=settings.max_import_bytes, events=settings.max_import_events, each=EVENT_BOUNDS)
    async with held_body(call.request, limit=settings.max_import_bytes) as document, call.service.copying:
        session_id = await call.operations.import_session(owner, document, bounds=bounds, tools=tools)
    return await created_session(call.operations, owner, session_id)
