"""How many turns two workers make in the time in which one makes so many, when it is the model that takes its time.

There is more to do than they can: each has as many turns under way as it may, and a turn is one answer that takes
between one second and two. First one works, and then another beside it. Ended turns are counted in the database.
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec

from bench import cluster, served
from bench.models import SLOW
from bench.place import Place
from bench.processor import cpu_seconds_of
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, SessionId
from holdfast.events.inbox import Message
from holdfast.events.session import SessionStarted
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Committed, Key, NewSession, Unit

OWNERS = 100
"""Enough that nobody has more turns waiting than may run at a time."""

STARTING_SECONDS = 60.0

_ENDED = "SELECT count(*) FROM holdfast.event WHERE type = 'holdfast.turn_ended'"
_BUSY = """
SELECT count(*) FROM (
  SELECT lease_holder FROM holdfast.session WHERE lease_holder IS NOT NULL GROUP BY 1 HAVING count(*) >= $1) AS busy
"""
_LEFT = "SELECT count(*) FROM holdfast.session WHERE runnable AND lease_holder IS NULL"


async def measure(place: Place) -> dict[str, float]:
    async with cluster.database(place, "workers") as url:
        await _fill(place, url)
        with served.on_all_cores(place):
            db = await asyncpg.connect(url)
            try:
                async with _worker(place, url, "first") as first:
                    one = await _working(place, db, first)
                    async with _worker(place, url, "second") as second:
                        two = await _working(place, db, first, second)
            finally:
                await db.close()
    figures = {"cluster_workers": two.turns_per_second / one.turns_per_second}
    figures["cluster_workers_two"] = two.turns_per_second
    if two.turn_cpu_ms is not None:
        figures["cluster_turn_cpu"] = two.turn_cpu_ms
    return figures


class Working(msgspec.Struct, frozen=True):
    """What workers did in a while."""

    turns_per_second: float
    turn_cpu_ms: float | None


async def _working(place: Place, db: asyncpg.Connection, *workers: int) -> Working:
    """Once all of them have all that they may, and the turns that they began with together are over."""
    deadline = time.monotonic() + STARTING_SECONDS
    while await db.fetchval(_BUSY, place.size.worker_turns) < len(workers):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(workers)} worker(s) did not take {place.size.worker_turns} sessions each")
        await asyncio.sleep(0.02)
    await asyncio.sleep(place.size.slow_answers[1])
    before, started, cpu = await db.fetchval(_ENDED), time.perf_counter(), _cpu_seconds(workers)
    await asyncio.sleep(place.size.worker_seconds)
    ended, seconds, used = await db.fetchval(_ENDED) - before, time.perf_counter() - started, _cpu_seconds(workers)
    if await db.fetchval(_LEFT) == 0:
        raise RuntimeError("the workers had nothing left to do while they were measured")
    if cpu is None or used is None or not ended:
        return Working(ended / seconds, None)
    return Working(ended / seconds, (used - cpu) / ended * 1000)


def _cpu_seconds(workers: Sequence[int]) -> float | None:
    used = [cpu_seconds_of(pid) for pid in workers]
    return None if None in used else sum(each for each in used if each is not None)


@asynccontextmanager
async def _worker(place: Place, url: str, name: str) -> AsyncIterator[int]:
    """The number of its process."""
    folder = place.folder / name
    folder.mkdir()
    command = (
        *(sys.executable, "-m", "holdfast", "worker", "--data-dir", str(folder)),
        *("--concurrency", str(place.size.worker_turns), "--drain-seconds", "0"),
        *("--model", "openai/bench", "--model-base-url", place.paced_url),
    )
    environ = {**os.environ, "HOLDFAST_DATABASE": url, "HOLDFAST_REDIS": place.redis_url}
    async with served.announced(command, cwd=folder, environ=environ) as (child, _):
        yield child.pid


async def _fill(place: Place, url: str) -> None:
    """A session for each turn, with a message in its inbox: as they are when they were sent and nobody works."""
    store = await PostgresStore.open(url, node="bench")
    try:
        await asyncio.gather(*(_send(store, place, number) for number in range(place.size.worker_backlog)))
    finally:
        await store.close()


async def _send(store: PostgresStore, place: Place, number: int) -> None:
    key = Key(Owner(f"owner-{number % OWNERS}"), SessionId(f"session-{number}"))
    started = SessionStarted(session_id=key.session, producer="bench", start_time=1)
    event = Event(Position(0), EventId(str(uuid.uuid4())), 1, started)
    unit = Unit(key=key, fence=None, events=(event,), creates=NewSession(created_at=1), title="Measured")
    assert isinstance(await store.commit(unit), Committed)
    shortest, longest = place.size.slow_answers
    # Answers of many lengths: the turns don't end all at the same moment, but about as many in each.
    seconds = shortest + (longest - shortest) * (number * 7 % 50) / 50
    sent = Message(message_id=MessageId(f"sent-{number}"), text=f"{SLOW}{seconds:.3f}")
    await store.put(key, sent, item_key=f"message:sent-{number}", queue_limit=1)
