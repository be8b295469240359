"""The PostgreSQL store passes the store conformance suite."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast.events.ids import Fence
from holdfast.events.inbox import INBOX_VERSION
from holdfast.store.clock import Clock
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Key, Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import AgeSpending, AgeTasks, InsertItem, LoseClaim, OpenStore, StoreConformance

pytestmark = pytest.mark.anyio


class TestPostgres(StoreConformance):
    @pytest.fixture
    async def open_store(self, postgres_url: str) -> AsyncIterator[OpenStore]:
        opened: list[PostgresStore] = []

        async def open_one(
            *,
            node: str = "here",
            tools: frozenset[str] = frozenset(),
            secret_key: str = "",
            clock: Clock | None = None,
            limits: TurnLimits = NO_LIMITS,
            inbox_version: int = INBOX_VERSION,
        ) -> Store:
            store = await PostgresStore.open(
                postgres_url,
                node=node,
                tools=tools,
                secret_key=secret_key,
                clock=clock,
                limits=limits,
                inbox_version=inbox_version,
            )
            opened.append(store)
            return store

        yield open_one
        for store in opened:
            await store.close()

    @pytest.fixture
    def lose_claim(self, postgres_url: str) -> LoseClaim:
        async def lose(key: Key, fence: Fence) -> None:
            db = await asyncpg.connect(postgres_url)
            await db.execute(
                "UPDATE holdfast.session SET fence = $1, lease_holder = NULL WHERE owner = $2 AND id = $3",
                fence,
                key.owner,
                key.session,
            )
            await db.close()

        return lose

    @pytest.fixture
    def insert_item(self, postgres_url: str) -> InsertItem:
        async def insert(key: Key, item_key: str, *, sequence: int, kind: str, payload: bytes) -> None:
            db = await asyncpg.connect(postgres_url)
            try:
                await db.execute(
                    "INSERT INTO holdfast.inbox (owner, session, item_key, sequence, place, kind, state, outcome,"
                    " accepted_at, while_running, payload)"
                    " VALUES ($1, $2, $3, $4, $4, $5, 'accepted', '', 1, false, $6)",
                    *(key.owner, key.session, item_key, sequence, kind, payload),
                )
                await db.execute(
                    "UPDATE holdfast.session SET inbox_tail = $3, runnable = true, runnable_since = 1,"
                    " status = 'queued' WHERE owner = $1 AND id = $2",
                    *(key.owner, key.session, sequence),
                )
            finally:
                await db.close()

        return insert

    @pytest.fixture
    def age_spending(self, postgres_url: str) -> AgeSpending:
        async def age(days: int) -> None:
            db = await asyncpg.connect(postgres_url)
            try:
                await db.execute("UPDATE holdfast.spending SET day = day - $1", days)
                await db.execute("UPDATE holdfast.reservation SET day = day - $1", days)
            finally:
                await db.close()

        return age

    @pytest.fixture
    def age_tasks(self, postgres_url: str) -> AgeTasks:
        async def age(seconds: int) -> None:
            db = await asyncpg.connect(postgres_url)
            try:
                await db.execute(
                    "UPDATE holdfast.task SET opened_at = opened_at - $1, end_noted_at = end_noted_at - $1",
                    seconds * 1000,
                )
                await db.execute("UPDATE holdfast.task_host SET seen_at = seen_at - $1", seconds * 1000)
            finally:
                await db.close()

        return age
