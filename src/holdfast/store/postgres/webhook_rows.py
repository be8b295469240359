"""The rows of webhooks and of their deliveries. The rows of events are written by a trigger (migration 15)."""

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.events.ids import EventId, Owner
from holdfast.store.postgres.connections import Link
from holdfast.store.webhooks import (
    MAX_SWEPT,
    DeliveryEnding,
    DeliveryState,
    WebhookBacklog,
    WebhookChange,
    WebhookDelivery,
    WebhookRow,
    changed,
    delivery_of,
    held,
)


async def add(db: Link, row: WebhookRow, limit: int | None) -> tuple[bool, str | None]:
    """Of two processes that add an owner's last webhook, the second waits for the first, and counts its webhook."""
    await db.rows("lock_owners", [row.owner])
    ((count,),) = await db.rows("count_webhooks", row.owner)
    if limit is not None and count >= limit:
        return False, None
    await db.run("add_webhook", *_columns(row))
    await _put_types(db, row)
    return True, "webhook"


async def change(
    db: Link, owner: Owner, webhook_id: str, change: WebhookChange
) -> tuple[WebhookRow | None, str | None]:
    """What waits is due at once: the owner may have mended the webhook."""
    found = await db.row("lock_webhook", owner, webhook_id)
    if found is None:
        return None, None
    row = changed(_webhook(found), change)
    await db.run("change_webhook", *_columns(row))
    await db.run("drop_webhook_types", owner, webhook_id)
    await _put_types(db, row)
    await db.run("webhook_due_now", webhook_id)
    return row, "webhook"


def _columns(row: WebhookRow) -> tuple[Any, ...]:
    about = (row.webhook_id, row.owner, row.url, list(row.events), list(row.types), row.description, row.is_active)
    return (*about, row.created_at, row.keeper, row.secret, row.old_secret, row.old_until)


async def _put_types(db: Link, row: WebhookRow) -> None:
    if row.is_active:
        await db.run("webhook_types", row.owner, row.webhook_id, list(row.types))


async def delete(db: Link, owner: Owner, webhook_id: str) -> tuple[bool, str | None]:
    if await db.run("delete_webhook", owner, webhook_id) == 0:
        return False, None
    await db.run("drop_webhook_types", owner, webhook_id)
    await db.run("delete_deliveries", webhook_id)
    return True, "webhook"


async def read(db: Link, owner: Owner, webhook_id: str | None) -> tuple[WebhookRow, ...]:
    return tuple(_webhook(found) for found in await db.rows("webhooks", owner, webhook_id))


async def one(db: Link, webhook_id: str) -> WebhookRow | None:
    found = await db.row("webhook", webhook_id)
    return None if found is None else _webhook(found)


async def backlog(db: Link, webhook_id: str) -> WebhookBacklog:
    ((pending, failing_since),) = await db.rows("webhook_backlog", webhook_id)
    return WebhookBacklog(pending, failing_since)


def _webhook(found: Sequence[Any]) -> WebhookRow:
    webhook_id, owner, url, events, types, description, is_active, created_at, keeper, *secrets = found
    secret, old_secret, old_until = secrets
    return WebhookRow(
        webhook_id=webhook_id,
        owner=owner,
        url=url,
        events=tuple(events),
        types=tuple(types),
        description=description,
        is_active=is_active,
        created_at=created_at,
        keeper=keeper,
        secret=secret,
        old_secret=old_secret,
        old_until=old_until,
    )


# Deliveries


async def deliveries(
    db: Link,
    owner: Owner,
    webhook_id: str,
    *,
    limit: int,
    after: EventId | None,
    state: DeliveryState | None,
) -> tuple[WebhookDelivery, ...]:
    found = await db.rows("deliveries", webhook_id, owner, state, after, limit)
    return tuple(delivery_of(row) for row in found)


async def delivery(db: Link, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
    found = await db.row("delivery", webhook_id, owner, event_id)
    return None if found is None else delivery_of(found)


async def add_test(db: Link, test: WebhookDelivery, limit: int) -> tuple[bool, str | None]:
    of = (test.webhook_id, test.key.owner)
    ((count,),) = await db.rows("count_tests", *of)
    if count >= limit:
        return False, None
    added = await db.run("add_delivery", *of, test.event_id, test.event_type, test.time) == 1
    return added, "test" if added else None


async def send_again(
    db: Link, owner: Owner, webhook_id: str, event_id: EventId
) -> tuple[WebhookDelivery | None, str | None]:
    if await db.run("send_again", webhook_id, owner, event_id) == 0:
        return None, None
    return await delivery(db, owner, webhook_id, event_id), "delivery"


async def has_pending(db: Link) -> bool:
    return await db.row("has_due_deliveries") is not None


async def claim(
    db: Link,
    *,
    me: str,
    keeper: str,
    limit: int,
    working: Collection[tuple[str, EventId]],
    crowded: Collection[str],
    now: int,
) -> tuple[tuple[WebhookDelivery, ...], str | None]:
    """Hold deliveries that are due for an attempt each."""
    names = [f"{webhook_id} {event_id}" for webhook_id, event_id in working]
    rows = await db.rows("due_deliveries", now, keeper, sorted(crowded), me, names, limit)
    found = [delivery_of(row) for row in rows]
    for each in found:
        await db.run("hold_delivery", each.webhook_id, each.event_id, me, now)
    return tuple(held(each, now=now) for each in found), "deliveries" if found else None


async def end(db: Link, delivery: WebhookDelivery, ending: DeliveryEnding, *, me: str) -> tuple[bool, str | None]:
    attempt = (delivery.webhook_id, delivery.event_id, me, delivery.attempts)
    line = (delivery.webhook_id, delivery.key.owner, delivery.key.session)
    if ending.state == "dropped":
        ended = await db.run("drop_delivery", *attempt) == 1
    else:
        answer = (ending.answer.status, ending.answer.fault)
        ended = await db.run("end_delivery", *attempt, ending.state, ending.due_at, *answer, ending.ended_at) == 1
    if not ended:
        return False, None
    if not delivery.is_single and ending.state == "pending":
        await db.run("delay_line", *line, ending.due_at)
    elif not delivery.is_single:
        await db.run("free_line", *line, ending.state == "given_up")
    return True, ending.state


async def drop_old(db: Link, before: int) -> tuple[int, str | None]:
    dropped = await db.run("drop_old_deliveries", before, MAX_SWEPT)
    return dropped, "deliveries" if dropped else None
