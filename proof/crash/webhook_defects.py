"""Defects of webhooks, planted by the control of the crash campaign."""

import sqlite3
from collections.abc import Awaitable
from typing import Any

from holdfast.events.event import type_of
from holdfast.events.webhook import REPORTED_EVENTS, reported_types
from holdfast.store.postgres.queries import SQL as POSTGRES_SQL
from holdfast.store.sqlite.queries import SQL as SQLITE_SQL
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, Outcome, Unit
from holdfast.store.webhooks import DeliveryEnding, WebhookAnswer, WebhookDelivery
from holdfast.webhooks.deliverer import Deliverer
from proof.crash.plant import altered, replace


def record_before_the_request() -> None:
    """The outcome is written before it is known."""
    ending_of = Deliverer._ending

    async def ending(self: Deliverer, delivery: WebhookDelivery) -> DeliveryEnding | None:
        hoped = DeliveryEnding(state="delivered", answer=WebhookAnswer(status=204), ended_at=1)
        await self._store.end_delivery(delivery, hoped)
        return await ending_of(self, delivery)

    replace(Deliverer, "_ending", ending)


def overtake() -> None:
    """An event does not wait for the one before it."""
    for statements in (SQLITE_SQL, POSTGRES_SQL):
        statements["due_deliveries"] = altered(statements["due_deliveries"], "(due.single OR NOT", "(true OR NOT")


def report_after_the_commit() -> None:
    """The outbox is written by a second transaction. (The trigger is gone.)"""
    types = reported_types(REPORTED_EVENTS)
    opened, commit = SqliteStore.open.__func__, SqliteStore.commit  # type: ignore[attr-defined]

    async def without_trigger(cls: type[SqliteStore], *given: Any, **named: Any) -> SqliteStore:
        store: SqliteStore = await opened(cls, *given, **named)
        await store._write("", lambda db: (db.execute("DROP TRIGGER IF EXISTS event_reported"), None))
        return store

    def late(self: SqliteStore, unit: Unit) -> Awaitable[Outcome]:
        committing = commit(self, unit)
        return _then_report(self, unit, committing)

    async def _then_report(self: SqliteStore, unit: Unit, committing: Awaitable[Outcome]) -> Outcome:
        outcome = await committing
        if isinstance(outcome, Committed):
            first = outcome.head - len(unit.events) + 1
            found = [(first + place, event) for place, event in enumerate(unit.events) if type_of(event.body) in types]
            rows = [
                (event.id, unit.key.owner, unit.key.session, position, type_of(event.body), event.time)
                for position, event in found
            ]
            if rows:
                await self._write("", lambda db: _insert(db, rows))
        return outcome

    replace(SqliteStore, "open", classmethod(without_trigger))
    replace(SqliteStore, "commit", late)


def _insert(db: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> tuple[None, str]:
    db.executemany(
        "INSERT INTO webhook_delivery (webhook, event_id, owner, session, position, type, time)"
        " SELECT id, ?, ?, ?, ?, ?, ? FROM webhook WHERE is_active",
        rows,
    )
    return None, "event"
