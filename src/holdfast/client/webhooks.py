"""The webhooks of one owner, on a server."""

from collections.abc import Sequence
from urllib.parse import quote

from holdfast.client.wire import Wire, WireRequest
from holdfast.events.codec import to_bytes
from holdfast.protocol.webhook import (
    ShownDeliveryState,
    WebhookDeliveryList,
    WebhookDeliveryView,
    WebhookList,
    Webhooks,
    WebhookView,
    WebhookWithSecret,
)


class ServerWebhooks(Webhooks):
    """What makes something new is never retried, because it carries no id."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def all(self) -> tuple[WebhookView, ...]:
        return (await self._wire.ask(WireRequest(method="GET", path="/v1/webhooks"), WebhookList)).webhooks

    async def get(self, webhook_id: str) -> WebhookView:
        return await self._wire.ask(WireRequest(method="GET", path=_path(webhook_id)), WebhookView)

    async def create(
        self, url: str, *, events: Sequence[str] | None = None, description: str = ""
    ) -> WebhookWithSecret:
        body = to_bytes({"url": url, "events": events, "description": description})
        asked = WireRequest(method="POST", path="/v1/webhooks", body=body, is_repeatable=False)
        return await self._wire.ask(asked, WebhookWithSecret)

    async def change(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> WebhookView:
        given = {"url": url, "events": events, "description": description, "active": active}
        body = to_bytes({name: value for name, value in given.items() if value is not None})
        return await self._wire.ask(WireRequest(method="PATCH", path=_path(webhook_id), body=body), WebhookView)

    async def delete(self, webhook_id: str) -> None:
        await self._wire.ask_bytes(WireRequest(method="DELETE", path=_path(webhook_id)))

    async def rotate(self, webhook_id: str) -> WebhookWithSecret:
        asked = WireRequest(method="POST", path=f"{_path(webhook_id)}/secret", is_repeatable=False)
        return await self._wire.ask(asked, WebhookWithSecret)

    async def test(self, webhook_id: str) -> WebhookDeliveryView:
        asked = WireRequest(method="POST", path=f"{_path(webhook_id)}/test", is_repeatable=False)
        return await self._wire.ask(asked, WebhookDeliveryView)

    async def deliveries(
        self, webhook_id: str, *, limit: int = 50, after: str | None = None, state: ShownDeliveryState | None = None
    ) -> WebhookDeliveryList:
        given = {"limit": str(limit), "after": after, "state": state}
        query = {name: value for name, value in given.items() if value is not None}
        asked = WireRequest(method="GET", path=f"{_path(webhook_id)}/deliveries", query=query)
        return await self._wire.ask(asked, WebhookDeliveryList)

    async def delivery(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        path = f"{_path(webhook_id)}/deliveries/{quote(delivery_id, safe='')}"
        return await self._wire.ask(WireRequest(method="GET", path=path), WebhookDeliveryView)

    async def send_again(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        path = f"{_path(webhook_id)}/deliveries/{quote(delivery_id, safe='')}/send"
        return await self._wire.ask(WireRequest(method="POST", path=path, is_repeatable=False), WebhookDeliveryView)


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}"
