"""The store in memory keeps what the seam promises: what is found on it would be found on the real ones."""

import time

import pytest
from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.ids import Fence
from holdfast.events.inbox import INBOX_VERSION, InboxItem
from holdfast.store.clock import Clock
from holdfast.store.store import Key, Store
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits
from holdfast.testing.store_conformance import AgeSpending, AgeTasks, InsertItem, LoseClaim, OpenStore, StoreConformance
from proof.simulation.memory import inbox
from proof.simulation.memory.store import MemoryStore
from proof.simulation.memory.tables import Database, InboxRecord

pytestmark = pytest.mark.anyio


class TestMemory(StoreConformance):
    @pytest.fixture
    def db(self) -> Database:
        return Database(time.monotonic)

    @pytest.fixture
    def lose_claim(self, db: Database) -> LoseClaim:
        async def lose(key: Key, fence: Fence) -> None:
            db.sessions[key].fence, db.sessions[key].holder = fence, None

        return lose

    @pytest.fixture
    def open_store(self, db: Database) -> OpenStore:
        async def open_one(
            *,
            node: str = "here",
            tools: frozenset[str] = frozenset(),
            secret_key: str = "",
            clock: Clock | None = None,
            limits: TurnLimits = NO_LIMITS,
            inbox_version: int = INBOX_VERSION,
        ) -> Store:
            return MemoryStore(
                db,
                node=node,
                tools=tools,
                secret_key=secret_key,
                clock=clock,
                limits=limits,
                inbox_version=inbox_version,
            )

        return open_one

    @pytest.fixture
    def insert_item(self, db: Database) -> InsertItem:
        async def insert(key: Key, item_key: str, *, sequence: int, kind: str, payload: bytes) -> None:
            session = db.sessions[key]
            session.tail += 1
            assert session.tail == sequence
            item = InboxItem(
                sequence=sequence,
                key=item_key,
                state="accepted",
                outcome="",
                accepted_at=1,
                while_running=session.turn_id is not None,
                item=codec.decode_item(payload),
            )
            session.inbox[item_key] = InboxRecord(item, payload, len(payload))
            inbox.wake(session, 1)

        return insert

    @pytest.fixture
    def age_spending(self, db: Database) -> AgeSpending:
        async def age(days: int) -> None:
            db.spending = {
                (key, day - days, model): replace(row, day=day - days) for (key, day, model), row in db.spending.items()
            }
            for record in db.reservations.values():
                record.row = replace(record.row, day=record.row.day - days)

        return age

    @pytest.fixture
    def age_tasks(self, db: Database) -> AgeTasks:
        async def age(seconds: int) -> None:
            for record in db.tasks.values():
                record.opened_at -= seconds
                if record.end_noted_at is not None:
                    record.end_noted_at -= seconds
            for host in db.hosts:
                db.hosts[host] -= seconds

        return age
