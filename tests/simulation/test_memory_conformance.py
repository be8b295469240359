"""The store in memory keeps what the seam promises: what is found on it would be found on the real ones."""

import time

import pytest

from holdfast.store.clock import Clock
from holdfast.store.store import Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.simulation.memory.store import MemoryStore
from holdfast.testing.simulation.memory.tables import Database
from holdfast.testing.store_conformance import OpenStore, StoreConformance

pytestmark = pytest.mark.anyio


class TestMemory(StoreConformance):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        db = Database(time.monotonic)

        async def open_one(
            *,
            node: str = "here",
            tools: frozenset[str] = frozenset(),
            secret_key: str = "",
            clock: Clock | None = None,
            limits: TurnLimits = NO_LIMITS,
        ) -> Store:
            return MemoryStore(db, node=node, tools=tools, secret_key=secret_key, clock=clock, limits=limits)

        return open_one
