"""Exports: a whole session as one JSON document."""

from starlette.responses import Response, StreamingResponse

from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint


@endpoint("GET", "/v1/sessions/{session_id}/export", summary="The whole session as one document")
async def export(call: HttpCall) -> Response:
    pieces = await call.operations.export_pieces(call.key, shown=call.shown)
    headers = {"content-disposition": 'attachment; filename="session.json"'}
    return StreamingResponse(pieces, 200, headers, media_type="application/json")
