"""Writers of several processes take turns: a waiting process is not overtaken by later ones, nor by the one that has
just written."""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.store import crash_points
from holdfast.store.sqlite import turnstile
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.turnstile import Turnstile
from holdfast.store.store import Unit
from holdfast.testing.store_conformance.words import KEY, committed, create, info

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
async def stores(path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores, which are two processes to the database."""
    one, other = [await SqliteStore.open(path, node="here") for _ in range(2)]
    await create(one)
    yield one, other
    await one.close()
    await other.close()


class Gate:
    """Holds the first commit after `shut`, inside its transaction, until the gate opens."""

    def __init__(self) -> None:
        self._is_shut = threading.Event()
        self.reached = threading.Event()
        self._opened = threading.Event()

    def shut(self) -> None:
        self._is_shut.set()

    def open(self) -> None:
        self._opened.set()

    def visit(self, point: str) -> None:
        if point.endswith(":before") and self._is_shut.is_set():
            self._is_shut.clear()
            self.reached.set()
            assert self._opened.wait(60)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    crash_points.install(gate.visit)
    yield gate
    gate.open()
    crash_points.install(None)


async def write(store: SqliteStore, text: str) -> int:
    return committed(await store.commit(Unit(key=KEY, fence=None, events=(info(text),)))).head


async def until_a_process_waits(path: Path) -> None:
    """Wait until a process is in the turnstile."""
    folder = os.open(path.with_name("holdfast.db.live"), os.O_RDONLY)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
                fcntl.flock(folder, fcntl.LOCK_UN)
                await asyncio.sleep(0.001)
    finally:
        os.close(folder)


async def test_process_that_just_wrote_lets_a_waiting_process_write_first(
    stores: tuple[SqliteStore, SqliteStore], path: Path, gate: Gate
) -> None:
    busy, patient = stores
    gate.shut()
    first = asyncio.ensure_future(write(busy, "first"))
    assert await asyncio.to_thread(gate.reached.wait, 60)
    behind = [asyncio.ensure_future(write(busy, "behind it")) for _ in range(3)]
    waiting = asyncio.ensure_future(write(patient, "waiting"))
    await until_a_process_waits(path)
    gate.open()
    order = [await first, await waiting, *[await each for each in behind]]
    assert order == sorted(order)


async def test_process_that_is_stopped_in_the_turnstile_is_bypassed(
    stores: tuple[SqliteStore, SqliteStore], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 0.01)
    still = Turnstile(path.with_name("holdfast.db.live"))
    with still:
        for store in stores:
            assert [await write(store, "on") for _ in range(5)]
    still.close()


async def test_database_that_stays_locked_is_reported_as_busy(
    stores: tuple[SqliteStore, SqliteStore], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.writer.BUSY_SECONDS", 0.05)
    busy, patient = stores
    gate.shut()
    first = asyncio.ensure_future(write(busy, "first"))
    assert await asyncio.to_thread(gate.reached.wait, 60)
    with pytest.raises(Exception, match="locked the database for too long"):
        await write(patient, "too long")
    gate.open()
    head = await first
    assert await write(patient, "now") > head
