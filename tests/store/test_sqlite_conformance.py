"""SQLite keeps what the seam promises."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.clock import Clock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import OpenStore, StoreConformance

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
        ) -> Store:
            path = tmp_path / "holdfast.db"
            opened.append(
                await SqliteStore.open(path, node=node, tools=tools, secret_key=secret_key, clock=clock, limits=limits)
            )
            return opened[-1]

        yield open_one
        for store in opened:
            await store.close()
