"""Webhooks and their deliveries. The outbox is written with the unit that appends the event."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from holdfast.events.event import Event, type_of
from holdfast.events.ids import EventId, Key, Owner
from holdfast.store.webhooks import (
    MAX_SWEPT,
    DeliveryEnding,
    DeliveryState,
    WebhookBacklog,
    WebhookChange,
    WebhookDelivery,
    WebhookRow,
    changed,
    held,
)
from proof.simulation.memory.tables import Database, DeliveryRecord


def report(db: Database, key: Key, events: Sequence[Event]) -> None:
    """Put the events of a unit into the outbox."""
    for event in events:
        for webhook in db.webhooks.values():
            if webhook.owner == key.owner and webhook.is_active and type_of(event.body) in webhook.types:
                delivery = WebhookDelivery(
                    webhook_id=webhook.webhook_id,
                    event_id=event.id,
                    key=key,
                    position=event.position,
                    event_type=type_of(event.body),
                    time=event.time,
                )
                db.deliveries.setdefault((webhook.webhook_id, event.id), DeliveryRecord(delivery))


def add(db: Database, row: WebhookRow, limit: int | None) -> tuple[bool, str | None]:
    if limit is not None and len(read(db, row.owner, None)) >= limit:
        return False, None
    db.webhooks[row.webhook_id] = row
    return True, "webhook"


def change(db: Database, owner: Owner, webhook_id: str, change: WebhookChange) -> tuple[WebhookRow | None, str | None]:
    if not read(db, owner, webhook_id):
        return None, None
    row = db.webhooks[webhook_id] = changed(db.webhooks[webhook_id], change)
    for record in _pending(db, webhook_id):
        record.row = replace(record.row, due_at=0)
    return row, "webhook"


def delete(db: Database, owner: Owner, webhook_id: str) -> tuple[bool, str | None]:
    if not read(db, owner, webhook_id):
        return False, None
    del db.webhooks[webhook_id]
    for name in [name for name in db.deliveries if name[0] == webhook_id]:
        del db.deliveries[name]
    return True, "webhook"


def delete_session(db: Database, key: Key) -> None:
    for name in [name for name, record in db.deliveries.items() if record.row.key == key]:
        del db.deliveries[name]


def read(db: Database, owner: Owner, webhook_id: str | None) -> tuple[WebhookRow, ...]:
    found = [row for row in db.webhooks.values() if row.owner == owner and webhook_id in (None, row.webhook_id)]
    return tuple(sorted(found, key=lambda row: (row.created_at, row.webhook_id)))


def backlog(db: Database, webhook_id: str) -> WebhookBacklog:
    pending = [record.row for record in _pending(db, webhook_id)]
    failing = [row.since for row in pending if row.fault is not None and row.since is not None]
    return WebhookBacklog(len(pending), min(failing, default=None))


def deliveries(
    db: Database, owner: Owner, webhook_id: str, *, limit: int, after: EventId | None, state: DeliveryState | None
) -> tuple[WebhookDelivery, ...]:
    found = [
        record.row
        for record in reversed(db.deliveries.values())
        if record.row.webhook_id == webhook_id and record.row.key.owner == owner
    ]
    if after is not None:
        places = [place for place, row in enumerate(found) if row.event_id == after]
        found = found[places[0] + 1 :] if places else []
    return tuple(row for row in found if state in (None, row.state))[:limit]


def delivery(db: Database, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
    record = db.deliveries.get((webhook_id, event_id))
    return record.row if record is not None and record.row.key.owner == owner else None


def add_test(db: Database, test: WebhookDelivery, limit: int) -> tuple[bool, str | None]:
    tests = [record for record in _pending(db, test.webhook_id) if record.row.is_test]
    if len(tests) >= limit or not read(db, test.key.owner, test.webhook_id):
        return False, None
    db.deliveries[test.webhook_id, test.event_id] = DeliveryRecord(test)
    return True, "test"


def send_again(
    db: Database, owner: Owner, webhook_id: str, event_id: EventId
) -> tuple[WebhookDelivery | None, str | None]:
    if delivery(db, owner, webhook_id, event_id) is None:
        return None, None
    record = db.deliveries[webhook_id, event_id]
    row = replace(record.row, state="pending", due_at=0, ended_at=None)
    record.row = row if record.row.state == "pending" else replace(row, is_single=True, since=None)
    return record.row, "delivery"


def claim(
    db: Database,
    *,
    me: str,
    keeper: str,
    limit: int,
    working: Collection[tuple[str, EventId]],
    crowded: Collection[str],
    now: int,
) -> tuple[tuple[WebhookDelivery, ...], str | None]:
    found: dict[str, DeliveryRecord] = {}
    if db.is_dead(me):
        return (), None
    due = [record for record in db.deliveries.values() if record.row.state == "pending" and record.row.due_at <= now]
    for record in sorted(due, key=lambda record: record.row.due_at):
        row = record.row
        webhook = db.webhooks[row.webhook_id]
        may_try = webhook.is_active and webhook.keeper in ("", keeper) and row.webhook_id not in (*crowded, *found)
        if may_try and _is_free(db, record, me, working) and _is_next(db, row):
            found[row.webhook_id] = record
    taken = list(found.values())[:limit]
    for record in taken:
        record.row, record.held_by = held(record.row, now=now), me
    return tuple(record.row for record in taken), "deliveries" if taken else None


def _is_free(db: Database, record: DeliveryRecord, me: str, working: Collection[tuple[str, EventId]]) -> bool:
    if record.held_by == me:
        return (record.row.webhook_id, record.row.event_id) not in working
    return record.held_by is None or db.is_dead(record.held_by)


def _is_next(db: Database, row: WebhookDelivery) -> bool:
    return row.is_single or all(
        other.position >= row.position for other in map(_row, _pending(db, row.webhook_id)) if _is_in_line(other, row)
    )


def end(db: Database, delivery: WebhookDelivery, ending: DeliveryEnding, *, me: str) -> tuple[bool, str | None]:
    name = (delivery.webhook_id, delivery.event_id)
    record = db.deliveries.get(name)
    if record is None or record.held_by != me or record.row.attempts != delivery.attempts:
        return False, None
    if ending.state == "dropped":
        del db.deliveries[name]
    else:
        answer = {"status": ending.answer.status, "fault": ending.answer.fault}
        told = {"state": ending.state, "due_at": ending.due_at, "ended_at": ending.ended_at}
        record.row, record.held_by = replace(record.row, **told, **answer), None
    if not delivery.is_single:
        for other in _pending(db, delivery.webhook_id):
            if _is_in_line(other.row, delivery):
                _follow(other, ending)
    return True, ending.state


def _follow(record: DeliveryRecord, ending: DeliveryEnding) -> None:
    """What the end of an attempt means for those behind it in line."""
    row = record.row
    if ending.state == "pending":
        record.row = replace(row, due_at=max(row.due_at, ending.due_at))
    elif ending.state == "given_up" and row.since is None:
        record.row = replace(row, due_at=0, since=row.time)
    else:
        record.row = replace(row, due_at=0)


def drop_old(db: Database, before: int) -> tuple[int, str | None]:
    old = [
        name
        for name, record in db.deliveries.items()
        if record.row.ended_at is not None and record.row.ended_at <= before
    ]
    for name in old[:MAX_SWEPT]:
        del db.deliveries[name]
    return len(old[:MAX_SWEPT]), "deliveries" if old else None


def _pending(db: Database, webhook_id: str) -> list[DeliveryRecord]:
    return [
        record
        for record in db.deliveries.values()
        if record.row.webhook_id == webhook_id and record.row.state == "pending"
    ]


def _row(record: DeliveryRecord) -> WebhookDelivery:
    return record.row


def _is_in_line(other: WebhookDelivery, row: WebhookDelivery) -> bool:
    return other.key == row.key and not other.is_single
