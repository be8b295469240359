"""How many durable appends a second, against a group commit that knows nothing of sessions, fences and heads.

Both append the same event, encoded the same way, from the same number of producers that each wait for one append
before the next; both have one writer thread that commits, fully synced, whatever came in during the last commit.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.place import Place
from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, SessionId, ToolCallId
from holdfast.events.inbox import Message
from holdfast.events.tool import ToolCompleted
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Committed, Key, NewSession, Unit

BODY = ToolCompleted(tool_call_id=ToolCallId("call_0123456789"), success=True, content="x" * 210)
"""About 300 bytes once it is encoded."""

ROUNDS = 4

Append = Callable[[int, int], Awaitable[None]]
"""Of the producer with this number, for the so-manieth time."""


async def measure(place: Place) -> dict[str, float]:
    figures: dict[str, float] = {}
    for producers in place.size.producers:
        raw = ours = 0.0
        for number in range(ROUNDS):
            folder = place.folder / f"appends-{producers}-{number}"
            folder.mkdir()
            raw += await _raw(folder, producers, place.size.append_seconds / ROUNDS)
            ours += await _ours(folder, producers, place.size.append_seconds / ROUNDS)
        figures[f"append_{producers}"] = ours / raw
        figures[f"append_{producers}_per_s"] = ours / ROUNDS
        figures[f"append_{producers}_raw_per_s"] = raw / ROUNDS
    return figures


async def _raw(folder: Path, producers: int, seconds: float) -> float:
    log = RawLog(folder / "raw.db")

    async def append(producer: int, number: int) -> None:
        kind, version, data = codec.encode(BODY)
        await log.append((f"session-{producer:04}", number, f"event-{number:08}", number, kind, version, data))

    try:
        return await rate(append, producers, seconds)
    finally:
        log.close()


async def _ours(folder: Path, producers: int, seconds: float) -> float:
    store = await SqliteStore.open(folder / "ours.db", node="bench")
    try:
        claims = await _claimed(store, producers)

        async def append(producer: int, number: int) -> None:
            lease = claims[producer].lease
            event = Event(Position(0), EventId(f"event-{number:08}"), number, BODY)
            outcome = await store.commit(Unit(key=lease.key, fence=lease.fence, events=(event,)))
            assert isinstance(outcome, Committed)

        return await rate(append, producers, seconds)
    finally:
        await store.close()


async def _claimed(store: SqliteStore, count: int) -> list[Claim]:
    for number in range(count):
        key = Key(Owner("bench"), SessionId(f"session-{number:04}"))
        await store.commit(Unit(key=key, fence=None, creates=NewSession(created_at=1)))
        await store.put(key, Message(message_id=MessageId("m"), text="go"), item_key="m", queue_limit=1)
    claims = await store.claim(limit=count)
    assert len(claims) == count
    return claims


async def rate(append: Append, producers: int, seconds: float) -> float:
    started = time.perf_counter()
    until = started + seconds

    async def produce(producer: int) -> int:
        number = 0
        while time.perf_counter() < until:
            number += 1
            await append(producer, number)
        return number

    appended = await asyncio.gather(*(produce(producer) for producer in range(producers)))
    return sum(appended) / (time.perf_counter() - started)


class RawLog:
    """The least that can be called a group commit: one table, one thread, one transaction for all that waits."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[asyncio.Future[None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA wal_autocheckpoint = 0")
        self._db.execute(
            "CREATE TABLE event (number INTEGER PRIMARY KEY, session TEXT, position INTEGER, id TEXT, time INTEGER, "
            "type TEXT, version INTEGER, data BLOB)"
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    async def append(self, row: tuple[Any, ...]) -> None:
        future = self._loop.create_future()
        self._queue.put((future, row))
        await future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            taken = [first]
            while not self._queue.empty() and (more := self._queue.get()) is not None:
                taken.append(more)
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO event (session, position, id, time, type, version, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [row for _, row in taken],
            )
            self._db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_settle, [future for future, _ in taken])


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
