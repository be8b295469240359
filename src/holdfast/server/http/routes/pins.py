"""Pins: messages of a person that the model keeps word for word."""

from starlette.responses import Response

from holdfast.events.ids import MessageId
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import no_content

PATH = "/v1/sessions/{session_id}/messages/{message_id}/pin"


@endpoint("PUT", PATH, summary="Pin a message, so that no compaction summarises it", results={204: None})
async def pin(call: HttpCall) -> Response:
    await _check(call)
    await call.operations.check_storage(call.identity.owner)
    await call.operations.pin(call.key, MessageId(call.path("message_id")))
    return no_content()


@endpoint("DELETE", PATH, summary="Unpin a message", results={204: None})
async def unpin(call: HttpCall) -> Response:
    await _check(call)
    await call.operations.unpin(call.key, MessageId(call.path("message_id")))
    return no_content()


async def _check(call: HttpCall) -> None:
    await call.operations.session(call.key)
    await call.check_change()
