"""How many durable appends a second on PostgreSQL, against the bare driver with a fenced statement and no more.

Both append the same event, encoded the same way, from the same number of producers that each wait for one append before
the next; both send whatever came in during the last commit as one statement, over one connection, and check which of
the rows were written. The bare one knows of nothing else: no units of several kinds, no refusals, no lost connections.
"""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg

from bench import cluster
from bench.place import Place
from bench.probes.appends import BODY, ROUNDS, rate
from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, SessionId
from holdfast.events.inbox import Message
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Claim, Committed, Key, NewSession, Unit

WARM_UP = 0.2
"""This part of the time comes before what counts: statements are prepared."""

_BARE_APPEND = Path(__file__).with_name("bare_append.sql").read_text("utf-8")

_HELD = """
INSERT INTO holdfast.session (owner, id, fence, lease_holder, runnable, status, created_at, updated_at)
SELECT 'raw', 'session-' || lpad(n::text, 4, '0'), 1, 'raw', true, 'running', 1, 1 FROM generate_series(0, $1) AS n
"""


async def measure(place: Place) -> dict[str, float]:
    figures: dict[str, float] = {}
    for producers in place.size.producers:
        async with cluster.database(place, f"appends_{producers}") as url:
            raw, ours = await _rates(url, producers, place.size.append_seconds)
        figures[f"cluster_append_{producers}"] = ours / raw
        figures[f"cluster_append_{producers}_per_s"] = ours
        figures[f"cluster_append_{producers}_raw_per_s"] = raw
    return figures


async def _rates(url: str, producers: int, seconds: float) -> tuple[float, float]:
    """Of the bare driver, and of ours: in turns, on the same tables."""
    store = await PostgresStore.open(url, node="bench")
    try:
        claims = await _claimed(store, producers)
        log = await RawLog.open(url, producers)
        try:
            raw, ours = Raw(log), Ours(store, claims)
            await rate(raw.append, producers, seconds * WARM_UP)
            await rate(ours.append, producers, seconds * WARM_UP)
            rounds = [
                (
                    await rate(raw.append, producers, seconds / ROUNDS),
                    await rate(ours.append, producers, seconds / ROUNDS),
                )
                for _ in range(ROUNDS)
            ]
        finally:
            await log.close()
    finally:
        await store.close()
    return sum(bare for bare, _ in rounds) / ROUNDS, sum(mine for _, mine in rounds) / ROUNDS


class Raw:
    """A producer's append by the bare driver."""

    def __init__(self, log: "RawLog") -> None:
        self._log = log

    async def append(self, producer: int, number: int) -> None:
        kind, version, data = codec.encode(BODY)
        await self._log.append(producer, (f"event-{number:08}", number, kind, version, data))


class Ours:
    """A producer's append by the store."""

    def __init__(self, store: PostgresStore, claims: list[Claim]) -> None:
        self._store = store
        self._claims = claims

    async def append(self, producer: int, number: int) -> None:
        lease = self._claims[producer].lease
        event = Event(Position(0), EventId(f"event-{number:08}"), number, BODY)
        outcome = await self._store.commit(Unit(key=lease.key, fence=lease.fence, events=(event,)))
        assert isinstance(outcome, Committed)


async def _claimed(store: PostgresStore, count: int) -> list[Claim]:
    for number in range(count):
        key = Key(Owner("bench"), SessionId(f"session-{number:04}"))
        await store.commit(Unit(key=key, fence=None, creates=NewSession(created_at=1)))
        await store.put(key, Message(message_id=MessageId("m"), text="go"), item_key="m", queue_limit=1)
    claims = await store.claim(limit=count)
    assert len(claims) == count
    return claims


Row = tuple[str, int, str, int, bytes]
"""An event: id, time, type, version and data."""


class RawLog:
    """The least that can be called a fenced group commit: one connection, one statement for all that waits."""

    def __init__(self, connection: Any, sessions: list[str]) -> None:
        self._connection = connection
        self._sessions = sessions
        self._statement = _BARE_APPEND
        self._waiting: list[tuple[int, Row, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._write())

    @classmethod
    async def open(cls, url: str, producers: int) -> "RawLog":
        """With a session for each producer, held by the name that every append shows."""
        settings = {"plan_cache_mode": "force_generic_plan", "jit": "off"}
        connection = await asyncpg.connect(url, server_settings=settings, max_cacheable_statement_size=0)
        await connection.execute(_HELD, producers - 1)
        return cls(connection, [f"session-{number:04}" for number in range(producers)])

    async def append(self, producer: int, row: Row) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((producer, row, future))
        self._wanted.set()
        await future

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._connection.close()

    async def _write(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            taken, self._waiting = self._waiting, []
            try:
                written = await self._connection.fetch(self._statement, *self._columns(taken))
                assert len(written) == len(taken), "every fence is the right one"
            except Exception as error:
                for _, _, future in taken:
                    future.set_exception(error)
                raise
            for _, _, future in taken:
                future.set_result(None)

    def _columns(self, taken: list[tuple[int, Row, asyncio.Future[None]]]) -> list[Any]:
        """As the statement has them: those of the sessions, the holder, the time, those of the events."""
        count = len(taken)
        none, ones, no = [None] * count, [1] * count, [False] * count
        ids, times, kinds, versions, data = zip(*(row for _, row, _ in taken), strict=True)
        sessions = [self._sessions[producer] for producer, _, _ in taken]
        about = (none, none, none, none, no, no, no)
        events = (list(range(1, count + 1)), ones, ids, times, kinds, versions, data, none)
        return [["raw"] * count, sessions, ones, none, ones, [0] * count, *about, "raw", 1, *events]
