"""All sessions of the caller at a glance: counts by state, and the latest sessions, the waiting ones first."""

from typing import Final

from starlette.responses import Response

from holdfast.protocol.session import Counts, Overview
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.views.sessions import session_view

LATELY_MS: Final = 86_400_000

MAX_ITEMS: Final = 50


@endpoint("GET", "/v1/overview", summary="The caller's sessions at a glance", result=Overview)
async def show(call: HttpCall) -> Response:
    since = call.service.clock.now_ms() - LATELY_MS
    glance = await call.operations.store.glance(call.identity.owner, since=since, limit=MAX_ITEMS)
    counts = Counts(
        needs_attention=glance.waiting,
        running=glance.running,
        queued=glance.queued,
        finished_lately=glance.idle_lately,
        idle=glance.idle - glance.idle_lately,
    )
    return json_response(Overview(counts=counts, items=tuple(session_view(row) for row in glance.first)))
