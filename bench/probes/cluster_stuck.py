"""How long a claim takes beside a thousand owners whose sessions can't be run here, against one in a database without
them.

The same hundred sessions of the same twenty owners have something to do in both, and may run here. The sessions of the
others wait for a host that is gone, a tool that is missing, a model that can't be used, or a secret that went with the
process that kept it. What was claimed is given back at once and may be claimed again.
"""

import statistics
import time

import asyncpg

from bench import cluster
from bench.place import Place
from holdfast.store.postgres.store import PostgresStore

OWNERS = 20
WAITING_OF_EACH = 5
WARM_UPS = 5
MODEL = "a model that can't be used here"

_WAITING = """
INSERT INTO holdfast.session (owner, id, head, status, runnable, runnable_since, created_at, updated_at)
SELECT 'owner-' || lpad((n % $1)::text, 8, '0'), 'session-' || n, 1, 'queued', true, 1000000000000000 + n, 1, 1
  FROM generate_series(1, $1 * $2::integer) AS n
"""

_STUCK = """
INSERT INTO holdfast.session
  (owner, id, head, status, runnable, runnable_since, host, tools, model, created_at, updated_at)
SELECT 'a-stuck-' || lpad(n::text, 8, '0'), 'stuck', 1, 'queued', true, 900000000000000 + n,
       CASE WHEN n % 4 = 0 THEN 'gone' ELSE '' END,
       CASE WHEN n % 4 = 1 THEN ARRAY['missing'] ELSE ARRAY[]::text[] END,
       CASE WHEN n % 4 = 2 THEN $2::text END, 1, 1
  FROM generate_series(1, $1::integer) AS n
"""

_SECRETS = """
INSERT INTO holdfast.secret (owner, session, keeper, sealed)
SELECT owner, id, 'a process that has ended', '' FROM holdfast.session
 WHERE id = 'stuck' AND host = '' AND tools = '{}' AND model IS NULL
"""


async def measure(place: Place) -> dict[str, float]:
    async with cluster.database(place, "without_stuck") as without_url, cluster.database(place, "stuck") as beside_url:
        without, beside = [await PostgresStore.open(url, node="bench") for url in (without_url, beside_url)]
        try:
            await _fill(without_url, stuck=0)
            await _fill(beside_url, stuck=place.size.stuck_owners)
            pairs = [
                (await _claim_seconds(without), await _claim_seconds(beside))
                for _ in range(WARM_UPS + place.size.cluster_claims)
            ][WARM_UPS:]
        finally:
            await without.close()
            await beside.close()
    alone, among = (statistics.median(taken) for taken in zip(*pairs, strict=True))
    return {"cluster_stuck": among / alone, "cluster_stuck_p50": among * 1000}


async def _claim_seconds(store: PostgresStore) -> float:
    started = time.perf_counter()
    claims = await store.claim(limit=1, without_models={MODEL})
    taken = time.perf_counter() - started
    (claim,) = claims
    assert claim.eligible
    assert await store.release(claim.lease, seen_tail=0, how="handed_over")
    return taken


async def _fill(url: str, *, stuck: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_WAITING, OWNERS, WAITING_OF_EACH)
        await connection.execute(_STUCK, stuck, MODEL)
        await connection.execute(_SECRETS)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
