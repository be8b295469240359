"""Whether a session has come to rest."""

import msgspec
from starlette.responses import Response

from holdfast.server.errors import NotFound
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.quiescence import is_settled
from holdfast.store.store import Cursor


class ActivityView(msgspec.Struct, frozen=True, kw_only=True):
    """The session's head, and whether the session has come to rest."""

    head: int
    """The position of its last event."""
    is_settled: bool
    """Nothing more happens until a client sends, answers or stops something, or a task ends."""


@endpoint(
    "GET", "/v1/sessions/{session_id}/activity", summary="Whether a session has come to rest", result=ActivityView
)
async def show(call: HttpCall) -> Response:
    head = (await call.operations.session(call.key)).head
    caught = await call.operations.store.catch_up(call.key, Cursor(head), limit=1)
    if caught is None:
        raise NotFound("session_not_found", f"There is no session {call.key.session}.")
    return json_response(ActivityView(head=caught.row.head, is_settled=is_settled(caught)))
