"""The queue: messages that wait for their turn; shown, edited, reordered and removed."""

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.events.ids import MessageId
from holdfast.protocol.queue import QueueView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.views.queue import queued_views


class NewOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message_ids: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=1_000)]
    """All waiting messages, in their new order."""


class NewText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1)]


@endpoint("GET", "/v1/sessions/{session_id}/queue", summary="The waiting messages", result=QueueView)
async def show(call: HttpCall) -> Response:
    return await _queue(call)


@endpoint(
    "PATCH",
    "/v1/sessions/{session_id}/queue",
    summary="Reorder the waiting messages",
    body=NewOrder,
    result=QueueView,
)
async def reorder(call: HttpCall) -> Response:
    order = await call.body(NewOrder)
    await call.operations.session(call.key)
    await call.check_change()
    await call.operations.reorder_queue(call.key, [MessageId(message_id) for message_id in order.message_ids])
    return await _queue(call)


@endpoint(
    "PATCH",
    "/v1/sessions/{session_id}/queue/{message_id}",
    summary="Edit a waiting message",
    body=NewText,
    result=QueueView,
)
async def edit(call: HttpCall) -> Response:
    edited = await call.body(NewText)
    await call.operations.session(call.key)
    await call.check_use()
    message_id = MessageId(call.path("message_id"))
    await call.operations.edit_queued(call.key, message_id, edited.text, bounds=call.bounds)
    return await _queue(call)


@endpoint(
    "DELETE",
    "/v1/sessions/{session_id}/queue/{message_id}",
    summary="Remove a waiting message",
    results={204: None},
)
async def remove(call: HttpCall) -> Response:
    await call.operations.session(call.key)
    await call.check_change()
    await call.operations.remove_queued(call.key, MessageId(call.path("message_id")))
    return no_content()


async def _queue(call: HttpCall) -> Response:
    return json_response(QueueView(messages=queued_views(await call.operations.queue(call.key))))
