"""The rows of webhooks and of their deliveries. The rows of events are written by a trigger (migration 20)."""

import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from holdfast.events.ids import EventId, Owner
from holdfast.store.sqlite.liveness import boot_id, boottime_ms
from holdfast.store.sqlite.queries import SQL
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


def add(db: sqlite3.Connection, row: WebhookRow, limit: int | None) -> tuple[bool, str | None]:
    (count,) = db.execute(SQL["count_webhooks"], (row.owner,)).fetchone()
    if limit is not None and count >= limit:
        return False, None
    _put(db, row)
    return True, "webhook"


def change(
    db: sqlite3.Connection, owner: Owner, webhook_id: str, change: WebhookChange
) -> tuple[WebhookRow | None, str | None]:
    """What waits is due at once: the owner may have mended the webhook."""
    found = read(db, owner, webhook_id)
    if not found:
        return None, None
    row = changed(found[0], change)
    _put(db, row)
    db.execute(SQL["webhook_due_now"], (webhook_id,))
    return row, "webhook"


def _put(db: sqlite3.Connection, row: WebhookRow) -> None:
    lists = (json.dumps(row.events), json.dumps(row.types))
    secrets = (row.keeper, row.secret, row.old_secret, row.old_until)
    about = (row.webhook_id, row.owner, row.url, *lists, row.description, row.is_active, row.created_at)
    db.execute(SQL["put_webhook"], (*about, *secrets))
    db.execute(SQL["drop_webhook_types"], (row.owner, row.webhook_id))
    if row.is_active:
        db.execute(SQL["webhook_types"], (row.owner, row.webhook_id, lists[1]))


def delete(db: sqlite3.Connection, owner: Owner, webhook_id: str) -> tuple[bool, str | None]:
    if db.execute(SQL["delete_webhook"], (owner, webhook_id)).rowcount == 0:
        return False, None
    db.execute(SQL["drop_webhook_types"], (owner, webhook_id))
    db.execute(SQL["delete_deliveries"], (webhook_id,))
    return True, "webhook"


def read(db: sqlite3.Connection, owner: Owner, webhook_id: str | None) -> tuple[WebhookRow, ...]:
    return tuple(_webhook(found) for found in db.execute(SQL["webhooks"], (owner, webhook_id)))


def one(db: sqlite3.Connection, webhook_id: str) -> WebhookRow | None:
    found = db.execute(SQL["webhook"], (webhook_id,)).fetchone()
    return None if found is None else _webhook(found)


def backlog(db: sqlite3.Connection, webhook_id: str) -> WebhookBacklog:
    return WebhookBacklog(*db.execute(SQL["webhook_backlog"], (webhook_id,)).fetchone())


def _webhook(found: Sequence[Any]) -> WebhookRow:
    webhook_id, owner, url, events, types, description, is_active, created_at, keeper, *secrets = found
    secret, old_secret, old_until = secrets
    return WebhookRow(
        webhook_id=webhook_id,
        owner=owner,
        url=url,
        events=tuple(json.loads(events)),
        types=tuple(json.loads(types)),
        description=description,
        is_active=bool(is_active),
        created_at=created_at,
        keeper=keeper,
        secret=secret,
        old_secret=old_secret,
        old_until=old_until,
    )


# Deliveries


def deliveries(
    db: sqlite3.Connection,
    owner: Owner,
    webhook_id: str,
    *,
    limit: int,
    after: EventId | None,
    state: DeliveryState | None,
) -> tuple[WebhookDelivery, ...]:
    found = db.execute(SQL["deliveries"], (webhook_id, owner, state, after, limit))
    return tuple(delivery_of(row) for row in found)


def delivery(db: sqlite3.Connection, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
    found = db.execute(SQL["delivery"], (webhook_id, owner, event_id)).fetchone()
    return None if found is None else delivery_of(found)


def add_test(db: sqlite3.Connection, test: WebhookDelivery, limit: int) -> tuple[bool, str | None]:
    of = (test.webhook_id, test.key.owner)
    if db.execute(SQL["count_tests"], of).fetchone()[0] >= limit:
        return False, None
    added = db.execute(SQL["add_delivery"], (*of, test.event_id, test.event_type, test.time)).rowcount == 1
    return added, "test" if added else None


def send_again(
    db: sqlite3.Connection, owner: Owner, webhook_id: str, event_id: EventId
) -> tuple[WebhookDelivery | None, str | None]:
    if db.execute(SQL["send_again"], (webhook_id, owner, event_id)).rowcount == 0:
        return None, None
    return delivery(db, owner, webhook_id, event_id), "delivery"


def due(
    db: sqlite3.Connection,
    *,
    me: str,
    keeper: str,
    limit: int,
    working: Collection[tuple[str, EventId]],
    crowded: Collection[str],
    now: int,
) -> tuple[WebhookDelivery, ...]:
    boot, boottime = boot_id(), boottime_ms()
    if db.execute(SQL["is_alive"], (me, boot, boottime)).fetchone() is None:
        return ()
    names = json.dumps([f"{webhook_id} {event_id}" for webhook_id, event_id in working])
    given = (now, keeper, json.dumps(sorted(crowded)), me, names, boot, boottime, limit)
    return tuple(delivery_of(found) for found in db.execute(SQL["due_deliveries"], given).fetchall())


def hold(
    db: sqlite3.Connection, found: Sequence[WebhookDelivery], *, me: str, now: int
) -> tuple[tuple[WebhookDelivery, ...], str | None]:
    """Hold these deliveries for an attempt each."""
    for each in found:
        db.execute(SQL["hold_delivery"], (each.webhook_id, each.event_id, me, now))
    return tuple(held(each, now=now) for each in found), "deliveries" if found else None


def end(
    db: sqlite3.Connection, delivery: WebhookDelivery, ending: DeliveryEnding, *, me: str
) -> tuple[bool, str | None]:
    attempt = (delivery.webhook_id, delivery.event_id, me, delivery.attempts)
    line = (delivery.webhook_id, delivery.key.owner, delivery.key.session)
    if ending.state == "dropped":
        ended = db.execute(SQL["drop_delivery"], attempt).rowcount == 1
    else:
        answer = (ending.answer.status, ending.answer.fault)
        written = (ending.state, ending.due_at, *answer, ending.ended_at)
        ended = db.execute(SQL["end_delivery"], (*attempt, *written)).rowcount == 1
    if not ended:
        return False, None
    if not delivery.is_single and ending.state == "pending":
        db.execute(SQL["delay_line"], (*line, ending.due_at))
    elif not delivery.is_single:
        db.execute(SQL["free_line"], (*line, ending.state == "given_up"))
    return True, ending.state


def drop_old(db: sqlite3.Connection, before: int) -> tuple[int, str | None]:
    dropped = db.execute(SQL["drop_old_deliveries"], (before, MAX_SWEPT)).rowcount
    return dropped, "deliveries" if dropped else None
