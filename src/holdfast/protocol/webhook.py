"""Webhooks: URLs of an owner that get the events of the owner's sessions, and the deliveries to them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.events.ids import EventId, Position

ShownDeliveryState = Literal["pending", "delivered", "given_up"]

ShownFault = Literal["timeout", "unreachable", "no_such_host", "address_refused", "tls_failed", "status", "unreadable"]
"""`status`: the answer was no 2xx. `address_refused`: the host has no address that the server allows. `unreadable`: the
server can't read the event or the secret."""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, without its secret."""

    id: str
    url: str
    events: tuple[str, ...]
    """The names of the events that it gets."""
    description: str
    active: bool
    """A paused webhook gets no new events; what is pending waits."""
    created_at: int
    pending: int
    """How many deliveries are still to be made."""
    failing_since: int | None
    """Since when a delivery fails, in milliseconds since 1970; null: none fails."""


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first."""

    webhooks: tuple[WebhookView, ...]


class WebhookWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook with a new secret, which is not shown again."""

    webhook: WebhookView
    secret: str
    """Verifies the requests: `whsec_` and base64. See `holdfast.client.verify_webhook`."""

    def __repr__(self) -> str:
        return f"WebhookWithSecret({self.webhook!r}, secret=***)"


class WebhookDeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way to one webhook."""

    id: EventId
    """The id of the event: the header `webhook-id` of every attempt."""
    type: str
    session_id: str | None
    """Null for a test."""
    position: Position | None
    time: int
    """When the event was written."""
    state: ShownDeliveryState
    attempts: int
    next_attempt_at: int | None
    """Of a pending delivery, unless it is due now or waits for the one before it."""
    last_attempt_at: int | None
    status: int | None
    """The HTTP status of the last answer."""
    fault: ShownFault | None
    """Why the last attempt failed; null: none failed, or the last one succeeded."""
    ended_at: int | None


class WebhookDeliveryList(msgspec.Struct, frozen=True, kw_only=True):
    """The latest first."""

    deliveries: tuple[WebhookDeliveryView, ...]
    next: str | None
    """Give it as `after` for the next page; null: this was the last."""


class Webhooks(Protocol):
    """The webhooks of one owner."""

    @abstractmethod
    async def all(self) -> tuple[WebhookView, ...]:
        """The oldest first."""

    @abstractmethod
    async def get(self, webhook_id: str) -> WebhookView: ...

    @abstractmethod
    async def create(
        self, url: str, *, events: Sequence[str] | None = None, description: str = ""
    ) -> WebhookWithSecret:
        """Have events sent to this URL from now on: those named, or all. The secret is not shown again."""

    @abstractmethod
    async def change(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> WebhookView:
        """Change what is given. What is pending is attempted at once."""

    @abstractmethod
    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries, also those that are pending."""

    @abstractmethod
    async def rotate(self, webhook_id: str) -> WebhookWithSecret:
        """Give the webhook a new secret. For a day, requests are signed with the one before as well."""

    @abstractmethod
    async def test(self, webhook_id: str) -> WebhookDeliveryView:
        """Have a test sent, once. `delivery` shows what became of it."""

    @abstractmethod
    async def deliveries(
        self, webhook_id: str, *, limit: int = 50, after: str | None = None, state: ShownDeliveryState | None = None
    ) -> WebhookDeliveryList: ...

    @abstractmethod
    async def delivery(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView: ...

    @abstractmethod
    async def send_again(self, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        """Have a pending delivery attempted now, or one that has ended once more."""
