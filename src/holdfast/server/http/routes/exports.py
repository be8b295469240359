"""Exports: a whole session as one JSON document."""

from starlette.responses import Response, StreamingResponse

from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.service import EXPORTS_PER_MINUTE


@endpoint("GET", "/v1/sessions/{session_id}/export", summary="The whole session as one document")
async def export(call: HttpCall) -> Response:
    exports = call.service.exports
    if not exports.take(call.identity.owner):
        # Each export is an entry of the audit log, and nobody shall fill the disk with them.
        text = f"At most {EXPORTS_PER_MINUTE} sessions are exported in a minute."
        raise ApiError(429, "too_many_exports", text, retry_after=exports.wait_seconds)
    pieces = await call.operations.export_pieces(call.key, shown=call.shown)
    headers = {"content-disposition": 'attachment; filename="session.json"'}
    return StreamingResponse(pieces, 200, headers, media_type="application/json")
