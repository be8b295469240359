"""Webhooks: registered, changed, tested and deleted; their deliveries listed and sent again."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from holdfast.protocol.webhook import (
    ShownDeliveryState,
    WebhookDeliveryList,
    WebhookDeliveryView,
    WebhookList,
    WebhookView,
    WebhookWithSecret,
)
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.operations.webhooks import MAX_DESCRIPTION_CHARACTERS, MAX_PAGE

Url = Annotated[str, Meta(min_length=1, max_length=2_000)]
Names = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=20)]
Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)]


class NewWebhookBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Url
    events: Names | None = None
    """Names of events, such as `turn.ended`; left out: all."""
    description: Description = ""


class WebhookPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a webhook. Fields that are left out stay as they are."""

    url: Url | UnsetType = UNSET
    events: Names | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    """False pauses the webhook."""


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    after: Annotated[str, Meta(max_length=64)] | None = None
    """`next` of the page before."""
    state: ShownDeliveryState | None = None


@endpoint("GET", "/v1/webhooks", summary="The caller's webhooks", result=WebhookList)
async def list_webhooks(call: HttpCall) -> Response:
    return json_response(WebhookList(webhooks=await call.service.webhooks.all(call.identity.owner)))


@endpoint(
    "POST",
    "/v1/webhooks",
    summary="Register a webhook; the response has its secret, which is not shown again",
    body=NewWebhookBody,
    results={201: WebhookWithSecret},
)
async def create(call: HttpCall) -> Response:
    body = await call.body(NewWebhookBody)
    made = await call.service.webhooks.create(
        call.identity.owner, body.url, events=body.events, description=body.description
    )
    return json_response(made, status=201)


@endpoint("GET", "/v1/webhooks/{webhook_id}", summary="A webhook", result=WebhookView)
async def show(call: HttpCall) -> Response:
    return json_response(await call.service.webhooks.get(call.identity.owner, call.path("webhook_id")))


@endpoint("PATCH", "/v1/webhooks/{webhook_id}", summary="Change a webhook", body=WebhookPatch, result=WebhookView)
async def change(call: HttpCall) -> Response:
    patch = await call.body(WebhookPatch)
    changed = await call.service.webhooks.change(
        call.identity.owner,
        call.path("webhook_id"),
        url=None if patch.url is UNSET else patch.url,
        events=None if patch.events is UNSET else patch.events,
        description=None if patch.description is UNSET else patch.description,
        active=None if patch.active is UNSET else patch.active,
    )
    return json_response(changed)


@endpoint(
    "DELETE",
    "/v1/webhooks/{webhook_id}",
    summary="Delete a webhook and its deliveries, also those that are pending",
    results={204: None},
)
async def delete(call: HttpCall) -> Response:
    await call.service.webhooks.delete(call.identity.owner, call.path("webhook_id"))
    return no_content()


@endpoint(
    "POST",
    "/v1/webhooks/{webhook_id}/secret",
    summary="Give a webhook a new secret; for a day, requests are signed with the old one too",
    result=WebhookWithSecret,
)
async def rotate(call: HttpCall) -> Response:
    return json_response(await call.service.webhooks.rotate(call.identity.owner, call.path("webhook_id")))


@endpoint(
    "POST",
    "/v1/webhooks/{webhook_id}/test",
    summary="Have a test sent to a webhook, once",
    results={202: WebhookDeliveryView},
)
async def test(call: HttpCall) -> Response:
    sent = await call.service.webhooks.test(call.identity.owner, call.path("webhook_id"))
    return json_response(sent, status=202)


@endpoint(
    "GET",
    "/v1/webhooks/{webhook_id}/deliveries",
    summary="The deliveries of a webhook, latest first",
    query=DeliveryQuery,
    result=WebhookDeliveryList,
)
async def list_deliveries(call: HttpCall) -> Response:
    query = call.query(DeliveryQuery)
    found = await call.service.webhooks.deliveries(
        call.identity.owner, call.path("webhook_id"), limit=query.limit, after=query.after, state=query.state
    )
    return json_response(found)


@endpoint(
    "GET",
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}",
    summary="A delivery of a webhook",
    result=WebhookDeliveryView,
)
async def show_delivery(call: HttpCall) -> Response:
    webhook_id, delivery_id = call.path("webhook_id"), call.path("delivery_id")
    return json_response(await call.service.webhooks.delivery(call.identity.owner, webhook_id, delivery_id))


@endpoint(
    "POST",
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/send",
    summary="Have a pending delivery attempted now, or one that has ended once more",
    results={202: WebhookDeliveryView},
)
async def send_again(call: HttpCall) -> Response:
    webhook_id, delivery_id = call.path("webhook_id"), call.path("delivery_id")
    sent = await call.service.webhooks.send_again(call.identity.owner, webhook_id, delivery_id)
    return json_response(sent, status=202)
