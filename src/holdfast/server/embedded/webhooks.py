"""The webhooks of one owner, in the database that this process has opened."""

from collections.abc import Sequence

from holdfast.events.ids import Owner
from holdfast.protocol.webhook import (
    ShownDeliveryState,
    WebhookDeliveryList,
    WebhookDeliveryView,
    Webhooks,
    WebhookView,
    WebhookWithSecret,
)
from holdfast.server.operations.webhooks import WebhookOperations


class OwnWebhooks(Webhooks):
    """They are delivered by processes that work."""

    def __init__(self, operations: WebhookOperations, owner: Owner) -> None:
        self._operations = operations
        self._owner = owner

    async def all(self) -> tuple[WebhookView, ...]:
        return await self._operations.all(self._owner)

    async def get(self, webhook_id: str) -> WebhookView:
        return await self._operations.get(self._owner, webhook_id)

    async def create(
        self, url: str, *, events: Sequence[str] | None = None, description: str = ""
    ) -> WebhookWithSecret:
        return await self._operations.create(self._owner, url, events=events, description=description)

    async def change(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> WebhookView:
        return await self._operations.change(
            self._owner, webhook_id, url=url, events=events, description=description, active=active
        )

    async def delete(self, webhook_id: str) -> None:
        await self._operations.delete(self._owner, webhook_id)

    async def rotate(self, webhook_id: str) -> WebhookWithSecret:
        return await self._operations.rotate(self._owner, webhook_id)

    async def test(self, webhook_id: str) -> WebhookDeliveryView:
        return await self._operations.test(self._owner, webhook_id)

    async def deliveries(
        self, webhook_id: str, *, limit: int = 50, after: str | None = None, state: ShownDeliveryState | None = None
    ) -> WebhookDeliveryList:
        return await self._operations.deliveries(self._owner, webhook_id, limit=limit, after=after, state=state)

    async def delivery(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        return await self._operations.delivery(self._owner, webhook_id, delivery_id)

    async def send_again(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        return await self._operations.send_again(self._owner, webhook_id, delivery_id)
