"""How long a claim takes with work waiting, in a database of a thousand sessions and in one of a million.

The same hundred sessions of the same twenty owners have something to do in both; in the large one a thousand times as
many owners have idle ones. What was claimed is given back at once and may be claimed again.
"""

import statistics
import time

import asyncpg

from bench import cluster
from bench.place import Place
from holdfast.events.ids import MessageId, Owner, SessionId
from holdfast.events.inbox import Message
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Accepted, Key

DATABASES = ("claims_small", "claims_large")
OWNERS = 20
WAITING_OF_EACH = 5
SESSIONS_OF_EACH = 50

WARM_UPS = 5

_FILL = """
INSERT INTO holdfast.session (owner, id, head, status, title, created_at, updated_at)
SELECT 'owner-' || lpad((n % $2)::text, 8, '0'), 'session-' || lpad(n::text, 8, '0'), 9, 'idle', 'Measured', n, n
  FROM generate_series(0, $1 - 1) AS n
"""


async def prepare(place: Place) -> None:
    for name, count in zip(DATABASES, place.size.cluster_sessions, strict=True):
        url = await cluster.make_database(place, name)
        store = await PostgresStore.open(url, node="bench")
        try:
            await _fill(url, count)
            for number in range(_waiting(count)):
                message = Message(message_id=MessageId("m"), text="go")
                put = await store.put(_key(number, count), message, item_key="m", queue_limit=1)
                assert isinstance(put, Accepted)
        finally:
            await store.close()


async def measure(place: Place) -> dict[str, float]:
    small, large = [await PostgresStore.open(cluster.url_of(place, name), node="bench") for name in DATABASES]
    try:
        pairs = [
            (await _claim_seconds(small), await _claim_seconds(large))
            for _ in range(WARM_UPS + place.size.cluster_claims)
        ][WARM_UPS:]
    finally:
        await small.close()
        await large.close()
    in_small, in_large = (statistics.median(taken) for taken in zip(*pairs, strict=True))
    return {"cluster_claim": in_large / in_small, "cluster_claim_p50": in_large * 1000}


async def _claim_seconds(store: PostgresStore) -> float:
    started = time.perf_counter()
    claims = await store.claim(limit=1)
    taken = time.perf_counter() - started
    (claim,) = claims
    assert await store.release(claim.lease, seen_tail=0, how="handed_over")
    return taken


async def _fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET synchronous_commit = off")
        await connection.execute(_FILL, count, _owners(count))
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


def _owners(count: int) -> int:
    return max(OWNERS, count // SESSIONS_OF_EACH)


def _waiting(count: int) -> int:
    return min(count, OWNERS * WAITING_OF_EACH)


def _key(number: int, count: int) -> Key:
    """The so-manieth session that has something to do: they are the first ones of the first owners."""
    owner, session = number % OWNERS, number // OWNERS * _owners(count) + number % OWNERS
    return Key(Owner(f"owner-{owner:08}"), SessionId(f"session-{session:08}"))
