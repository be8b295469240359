"""The SQLite store passes the store conformance suite."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.events.ids import Fence
from holdfast.events.inbox import INBOX_VERSION
from holdfast.store.clock import Clock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Key, Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import AgeSpending, AgeTasks, InsertItem, LoseClaim, OpenStore, StoreConformance

pytestmark = pytest.mark.anyio


class TestSqlite(StoreConformance):
    @pytest.fixture
    async def open_store(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        opened: list[SqliteStore] = []

        async def open_one(
            *,
            node: str = "here",
            tools: frozenset[str] = frozenset(),
            secret_key: str = "",
            clock: Clock | None = None,
            limits: TurnLimits = NO_LIMITS,
            inbox_version: int = INBOX_VERSION,
        ) -> Store:
            path = tmp_path / "holdfast.db"
            opened.append(
                await SqliteStore.open(
                    path,
                    node=node,
                    tools=tools,
                    secret_key=secret_key,
                    clock=clock,
                    limits=limits,
                    inbox_version=inbox_version,
                )
            )
            return opened[-1]

        yield open_one
        for store in opened:
            await store.close()

    @pytest.fixture
    def lose_claim(self, tmp_path: Path) -> LoseClaim:
        async def lose(key: Key, fence: Fence) -> None:
            with closing(sqlite3.connect(tmp_path / "holdfast.db")) as db:
                db.execute(
                    "UPDATE session SET fence = ?, lease_holder = NULL WHERE owner = ? AND id = ?",
                    (fence, key.owner, key.session),
                )
                db.commit()

        return lose

    @pytest.fixture
    def insert_item(self, tmp_path: Path) -> InsertItem:
        async def insert(key: Key, item_key: str, *, sequence: int, kind: str, payload: bytes) -> None:
            of = {"owner": key.owner, "session": key.session, "sequence": sequence}
            with closing(sqlite3.connect(tmp_path / "holdfast.db")) as db, db:
                db.execute(
                    "INSERT INTO inbox (owner, session, item_key, sequence, place, kind, state, outcome, accepted_at,"
                    " while_running, payload) VALUES (:owner, :session, :item_key, :sequence, :sequence, :kind,"
                    " 'accepted', '', 1, 0, :payload)",
                    {**of, "item_key": item_key, "kind": kind, "payload": payload},
                )
                db.execute(
                    "UPDATE session SET inbox_tail = :sequence, runnable = 1, runnable_since = 1, status = 'queued'"
                    " WHERE owner = :owner AND id = :session",
                    of,
                )

        return insert

    @pytest.fixture
    def age_spending(self, tmp_path: Path) -> AgeSpending:
        async def age(days: int) -> None:
            with closing(sqlite3.connect(tmp_path / "holdfast.db")) as db, db:
                db.execute("UPDATE spending SET day = day - ?", (days,))
                db.execute("UPDATE reservation SET day = day - ?", (days,))

        return age

    @pytest.fixture
    def age_tasks(self, tmp_path: Path) -> AgeTasks:
        async def age(seconds: int) -> None:
            with closing(sqlite3.connect(tmp_path / "holdfast.db")) as db, db:
                db.execute(
                    "UPDATE task SET opened_at = opened_at - ?1, end_noted_at = end_noted_at - ?1", (seconds * 1000,)
                )
                db.execute("UPDATE task_host SET seen_at = seen_at - ?", (seconds * 1000,))

        return age
