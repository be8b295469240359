"""Webhooks: registered, changed, tested and deleted; their deliveries looked at and sent again."""

from collections.abc import Sequence
from typing import Final

from holdfast.events.ids import EventId, Key, Owner, Position, SessionId, random_id
from holdfast.events.webhook import REPORTED_EVENTS, TEST_EVENT, reported_name, reported_types
from holdfast.protocol.webhook import (
    ShownDeliveryState,
    WebhookDeliveryList,
    WebhookDeliveryView,
    WebhookView,
    WebhookWithSecret,
)
from holdfast.protocol.webhook_signature import secret_text
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.store.clock import Clock
from holdfast.store.store import Store
from holdfast.store.webhooks import WebhookChange, WebhookDelivery, WebhookRow
from holdfast.webhooks.addresses import ReceiverRefused, ReceiverRules
from holdfast.webhooks.secrets import OLD_SECRET_MS, WebhookSecrets

MAX_DESCRIPTION_CHARACTERS: Final = 200

MAX_PENDING_TESTS: Final = 5
"""Of one webhook: a test is sent at once, so more are only pending while the receiver is slow."""

MAX_PAGE: Final = 200


class WebhookOperations:
    """The verbs of webhooks; one object per runtime, beside `Operations`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        secrets: WebhookSecrets,
        rules: ReceiverRules,
        limit: int | None,
        is_on: bool = True,
    ) -> None:
        """`limit`: how many webhooks an owner may have. `is_on`: whether the server has webhooks at all."""
        self._store = store
        self._clock = clock
        self._secrets = secrets
        self._rules = rules
        self._limit = limit
        self._is_on = is_on

    async def all(self, owner: Owner) -> tuple[WebhookView, ...]:
        return tuple([await self._view(row) for row in await self._store.webhooks(owner)])

    async def get(self, owner: Owner, webhook_id: str) -> WebhookView:
        return await self._view(await self._find(owner, webhook_id))

    async def create(
        self, owner: Owner, url: str, *, events: Sequence[str] | None = None, description: str = ""
    ) -> WebhookWithSecret:
        self._check_on()
        names = _checked_events(REPORTED_EVENTS if events is None else events)
        webhook_id, secret = random_id(), self._secrets.make()
        row = WebhookRow(
            webhook_id=webhook_id,
            owner=owner,
            url=self._checked_url(url),
            events=names,
            types=reported_types(names),
            description=_checked_description(description),
            created_at=self._clock.now_ms(),
            keeper=self._secrets.keeper,
            secret=self._secrets.seal(owner, webhook_id, secret),
        )
        if not await self._store.add_webhook(row, limit=self._limit):
            raise Conflict("too_many_webhooks", f"You have {self._limit} webhooks, and may have no more. Delete one.")
        return WebhookWithSecret(webhook=await self._view(row), secret=secret_text(secret))

    async def change(
        self,
        owner: Owner,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> WebhookView:
        self._check_on()
        names = None if events is None else _checked_events(events)
        change = WebhookChange(
            url=None if url is None else self._checked_url(url),
            events=names,
            types=None if names is None else reported_types(names),
            description=None if description is None else _checked_description(description),
            is_active=active,
        )
        return await self._view(await self._changed(owner, webhook_id, change))

    async def delete(self, owner: Owner, webhook_id: str) -> None:
        if not await self._store.delete_webhook(owner, webhook_id):
            raise _no_webhook(webhook_id)

    async def rotate(self, owner: Owner, webhook_id: str) -> WebhookWithSecret:
        self._check_on()
        row = await self._find(owner, webhook_id)
        now, secret = self._clock.now_ms(), self._secrets.make()
        # The secret before stays only if it is sealed with the same key: one row has one keeper.
        is_kept = row.keeper == self._secrets.keeper
        change = WebhookChange(
            keeper=self._secrets.keeper,
            secret=self._secrets.seal(owner, webhook_id, secret),
            old_secret=row.secret if is_kept else b"",
            old_until=now + OLD_SECRET_MS if is_kept else 0,
        )
        view = await self._view(await self._changed(owner, webhook_id, change))
        return WebhookWithSecret(webhook=view, secret=secret_text(secret))

    # Deliveries

    async def test(self, owner: Owner, webhook_id: str) -> WebhookDeliveryView:
        self._check_on()
        row = await self._find(owner, webhook_id)
        if not row.is_active:
            raise Conflict("webhook_paused", "The webhook is paused. Make it active first.")
        test = WebhookDelivery(
            webhook_id=webhook_id,
            event_id=EventId(random_id()),
            key=Key(owner, SessionId("")),
            position=Position(0),
            event_type=TEST_EVENT,
            time=self._clock.now_ms(),
            is_single=True,
        )
        if not await self._store.test_webhook(test, limit=MAX_PENDING_TESTS):
            raise Conflict("too_many_tests", f"{MAX_PENDING_TESTS} tests of this webhook are under way. Wait for them.")
        return _delivery_view(test)

    async def deliveries(
        self,
        owner: Owner,
        webhook_id: str,
        *,
        limit: int,
        after: str | None = None,
        state: ShownDeliveryState | None = None,
    ) -> WebhookDeliveryList:
        await self._find(owner, webhook_id)
        most = max(1, min(limit, MAX_PAGE))
        last = None if after is None else EventId(after)
        found = await self._store.deliveries(owner, webhook_id, limit=most + 1, after=last, state=state)
        page = tuple(map(_delivery_view, found[:most]))
        return WebhookDeliveryList(deliveries=page, next=page[-1].id if len(found) > most else None)

    async def delivery(self, owner: Owner, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        await self._find(owner, webhook_id)
        found = await self._store.delivery(owner, webhook_id, EventId(delivery_id))
        if found is None:
            raise _no_delivery(delivery_id)
        return _delivery_view(found)

    async def send_again(self, owner: Owner, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
        self._check_on()
        await self._find(owner, webhook_id)
        found = await self._store.send_again(owner, webhook_id, EventId(delivery_id))
        if found is None:
            raise _no_delivery(delivery_id)
        return _delivery_view(found)

    # Checks

    def _check_on(self) -> None:
        if not self._is_on:
            raise Conflict("webhooks_off", "This server sends no webhooks: its setting HOLDFAST_WEBHOOKS is off.")

    def _checked_url(self, url: str) -> str:
        try:
            self._rules.check_url(url)
        except ReceiverRefused as error:
            raise Invalid("webhook_url_refused", str(error)) from None
        return url

    async def _find(self, owner: Owner, webhook_id: str) -> WebhookRow:
        found = await self._store.webhooks(owner, webhook_id)
        if not found:
            raise _no_webhook(webhook_id)
        return found[0]

    async def _changed(self, owner: Owner, webhook_id: str, change: WebhookChange) -> WebhookRow:
        row = await self._store.change_webhook(owner, webhook_id, change)
        if row is None:
            raise _no_webhook(webhook_id)
        return row

    async def _view(self, row: WebhookRow) -> WebhookView:
        backlog = await self._store.webhook_backlog(row.webhook_id)
        return WebhookView(
            id=row.webhook_id,
            url=row.url,
            events=row.events,
            description=row.description,
            active=row.is_active,
            created_at=row.created_at,
            pending=backlog.pending,
            failing_since=backlog.failing_since,
        )


def _delivery_view(delivery: WebhookDelivery) -> WebhookDeliveryView:
    is_waiting = delivery.state == "pending" and delivery.fault is not None and delivery.due_at > 0
    return WebhookDeliveryView(
        id=delivery.event_id,
        type=reported_name(delivery.event_type),
        session_id=delivery.key.session or None,
        position=None if delivery.is_test else delivery.position,
        time=delivery.time,
        state=delivery.state,
        attempts=delivery.attempts,
        next_attempt_at=delivery.due_at if is_waiting else None,
        last_attempt_at=delivery.tried_at,
        status=delivery.status,
        fault=delivery.fault,
        ended_at=delivery.ended_at,
    )


def _checked_events(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in REPORTED_EVENTS]
    if unknown or not names:
        what = f"There is no event {unknown[0][:60]!r}." if unknown else "Name at least one event."
        raise Invalid("webhook_event_unknown", f"{what} Webhooks report {', '.join(REPORTED_EVENTS)}.")
    return tuple(name for name in REPORTED_EVENTS if name in names)


def _checked_description(text: str) -> str:
    if len(text) > MAX_DESCRIPTION_CHARACTERS or not text.isprintable():
        message = f"The description must be one line of at most {MAX_DESCRIPTION_CHARACTERS} characters."
        raise Invalid("webhook_description_invalid", message)
    return text


def _no_webhook(webhook_id: str) -> NotFound:
    return NotFound("webhook_not_found", f"There is no webhook {webhook_id}.")


def _no_delivery(delivery_id: str) -> NotFound:
    return NotFound(
        "delivery_not_found", f"There is no delivery {delivery_id} of this webhook; old ones are dropped after 3 days."
    )
