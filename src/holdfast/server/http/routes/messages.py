"""Messages sent for a receipt, by programs that follow the session's event stream."""

import msgspec
from starlette.responses import Response

from holdfast.events.ids import MessageId
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.server.chosen_id import ChosenId
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.message_options import MessageOptions


class NewMessageBody(MessageOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    message_id: ChosenId | None = None
    """The same id again is the same message, and gets the same receipt."""
    delivery: DeliveryChoice = "steer"
    """How the message meets a running turn."""
    unattended: bool = False
    """No person can be asked: a call that needs a permission is denied in the message's turn."""


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/messages",
    summary="Send a message and get its receipt: the message is on disk",
    body=NewMessageBody,
    result=Sent,
)
async def send(call: HttpCall) -> Response:
    message = await call.body(NewMessageBody)
    await call.check_use()
    choice = await call.message_choice(call.key, message)
    with call.service.rates.reserve(call.identity.owner, message.delivery) as slot:
        receipt = await call.operations.send(
            call.key,
            message.text,
            message_id=MessageId(message.message_id) if message.message_id is not None else None,
            delivery=message.delivery,
            unattended=message.unattended,
            only_if_idle=not slot.is_free,
            bounds=call.bounds,
            **choice.as_arguments(),
        )
        slot.count(receipt)
    return json_response(receipt)


class ContinueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message_id: ChosenId | None = None
    """The same id again is the same message, and gets the same receipt."""
    unattended: bool = False


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/continue",
    summary="Go on after a turn that ended with an error, also for want of money",
    body=ContinueBody,
    result=Sent,
)
async def go_on(call: HttpCall) -> Response:
    body = await call.body(ContinueBody)
    await call.check_use()
    receipt = await call.operations.go_on(
        call.key,
        message_id=MessageId(body.message_id) if body.message_id is not None else None,
        unattended=body.unattended,
        bounds=call.bounds,
    )
    return json_response(receipt)


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/messages/{message_id}",
    summary="The current receipt of a message",
    result=Sent,
)
async def show_receipt(call: HttpCall) -> Response:
    await call.operations.session(call.key)
    return json_response(await call.operations.receipt(call.key, MessageId(call.path("message_id"))))
