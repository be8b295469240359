"""PostgreSQL keeps what the seam promises."""

from collections.abc import AsyncIterator

import pytest

from holdfast.store.clock import Clock
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import OpenStore, StoreConformance

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
        ) -> Store:
            store = await PostgresStore.open(
                postgres_url, node=node, tools=tools, secret_key=secret_key, clock=clock, limits=limits
            )
            opened.append(store)
            return store

        yield open_one
        for store in opened:
            await store.close()
