"""SQLite keeps what the seam promises."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.events.ids import Fence
from holdfast.store.clock import Clock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Key, Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import LoseClaim, OpenStore, StoreConformance

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

    @pytest.fixture
    def lose_claim(self, tmp_path: Path) -> LoseClaim:
        async def lose(key: Key, fence: Fence) -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / "holdfast.db")) as db:
                db.execute(
                    "UPDATE session SET fence = ?, lease_holder = NULL WHERE owner = ? AND id = ?",
                    (fence, key.owner, key.session),
                )
                db.commit()

        return lose
