"""Whether a session has come to rest."""

from starlette.responses import Response

from holdfast.protocol.session import Activity
from holdfast.server.errors import NotFound
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.quiescence import is_settled
from holdfast.store.store import Cursor


@endpoint("GET", "/v1/sessions/{session_id}/activity", summary="Whether a session has come to rest", result=Activity)
async def show(call: HttpCall) -> Response:
    head = (await call.operations.session(call.key)).head
    caught = await call.operations.store.catch_up(call.key, Cursor(head), limit=1)
    if caught is None:
        raise NotFound("session_not_found", f"There is no session {call.key.session}.")
    return json_response(Activity(head=caught.row.head, is_settled=is_settled(caught)))
