"""Whether a session has come to rest."""

from starlette.responses import Response

from holdfast.protocol.session import Activity
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response


@endpoint("GET", "/v1/sessions/{session_id}/activity", summary="Whether a session has come to rest", result=Activity)
async def show(call: HttpCall) -> Response:
    return json_response(await call.operations.activity(call.key))
