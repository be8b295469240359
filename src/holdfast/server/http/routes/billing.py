"""Changes of owners' limits by a billing system: signed webhooks, in any order, any number of times."""

from typing import Annotated, Final

from msgspec import Meta
from starlette.responses import Response

from holdfast.events.ids import Owner
from holdfast.protocol.budget import BillingReceipt
from holdfast.protocol.webhook_signature import WebhookNotVerified, verified_id
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.routes.budgets import LimitsBody
from holdfast.server.http.service import BILLING
from holdfast.server.http.wire import json_response, parse, read_bytes

MAX_BYTES: Final = 10_000


class BillingBody(LimitsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an owner, as a billing system sets them."""

    owner: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Annotated[int, Meta(ge=1, le=2**53)]
    """Rises with each change of this owner's limits: an older change that comes later changes nothing."""


@endpoint(
    "POST",
    BILLING,
    summary="Set an owner's limits, by a signed message of a billing system",
    body=BillingBody,
    result=BillingReceipt,
    is_public=True,
)
async def bill(call: HttpCall) -> Response:
    key = call.service.billing_key
    assert key is not None, "without a secret there is no such route"
    content = await read_bytes(call.request, limit=MAX_BYTES)
    try:
        message_id = verified_id(key, call.request.headers, content, now=call.service.clock.now_ms() / 1000)
    except WebhookNotVerified as error:
        raise ApiError(401, "signature_refused", str(error)) from None
    body = parse(content, BillingBody)
    applied = await call.operations.bill(
        Owner(body.owner), body.limits(), at=body.at(), message_id=message_id, version=body.version
    )
    return json_response(BillingReceipt(applied=applied))
