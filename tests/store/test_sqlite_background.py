"""Snapshots are written when no other write waits, and still get written in time."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events.ids import Position
from holdfast.store import crash_points
from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.writer import MAX_DEFERRALS
from holdfast.store.store import Snapshot, Unit
from holdfast.testing.store_conformance.words import KEY, info, running

pytestmark = pytest.mark.anyio

SNAPSHOT = Snapshot(1, Position(1), b"folded")


class Busy:
    """A writer that is held at its first commit until it is released, and the order of its writes."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.is_held = threading.Event()
        self.go = threading.Event()

    def visit(self, point: str) -> None:
        self.is_held.set()
        assert self.go.wait(30)
        if point.endswith(":after"):
            self.wrote.append(point.split(":")[0])


@pytest.fixture
def busy() -> Iterator[Busy]:
    busy = Busy()
    yield busy
    busy.go.set()
    crash_points.install(None)


async def test_snapshot_is_written_after_the_writes_that_were_handed_in_with_it(tmp_path: Path, busy: Busy) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    lease = await running(store)
    crash_points.install(busy.visit)
    first = store.commit(Unit(key=KEY, fence=lease.fence, events=(info("first"),)))
    await asyncio.to_thread(busy.is_held.wait, 30)
    kept = asyncio.ensure_future(store.keep_snapshot(lease, SNAPSHOT))
    await asyncio.sleep(0)
    others = [store.commit(Unit(key=KEY, fence=lease.fence, events=(info(str(n)),))) for n in range(3)]
    busy.go.set()
    await asyncio.gather(first, *others)
    assert await kept
    assert busy.wrote == ["commit"] * 4 + ["keep_snapshot"]
    crash_points.install(None)
    await store.close()


async def test_snapshot_is_written_even_if_other_writes_never_pause(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    lease = await running(store)
    kept = asyncio.ensure_future(store.keep_snapshot(lease, SNAPSHOT))
    committed = 0
    while not kept.done():
        await asyncio.gather(
            *(store.commit(Unit(key=KEY, fence=lease.fence, events=(info("x"),))) for _ in range(2)),
        )
        committed += 1
        assert committed <= 10 * MAX_DEFERRALS
    assert await kept
    await store.close()


async def test_waiting_snapshot_gets_an_outcome_when_the_store_closes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    lease = await running(store)
    kept = asyncio.ensure_future(store.keep_snapshot(lease, SNAPSHOT))
    await asyncio.sleep(0)
    await store.close()
    (outcome,) = await asyncio.gather(kept, return_exceptions=True)
    assert isinstance(outcome, bool | StoreUnavailable)
