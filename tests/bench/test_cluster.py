"""The tools behind the cluster's figures: a bare append with the same fence check, readers that notice gaps, databases
with as many claimable sessions as stated, and nothing left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from bench import cluster
from bench.bars import LINES
from bench.place import QUICK, Place
from bench.probes import cluster_appends, cluster_claims
from bench.probes.cluster_nodes import Reader
from bench.sections import names_of
from holdfast.store.postgres.store import PostgresStore
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0
"""No test that passes waits nearly as long."""


@pytest.fixture
def place(tmp_path: Path, postgres_databases: Databases) -> Place:
    return Place(
        folder=tmp_path,
        prepared=tmp_path,
        run=0,
        model_url="",
        paced_url="",
        size=QUICK,
        peers=tmp_path,
        core=None,
        postgres_url=postgres_databases.server.url(),
    )


def test_the_section_is_all_of_its_lines_and_each_promise_has_a_bar() -> None:
    named = {line.name: line for line in LINES if "cluster" in names_of(line)}
    assert set(named) == {line.name for line in LINES if line.name.startswith("cluster_")}
    appends = {"cluster_append_20", "cluster_append_100"}
    claims = {"cluster_claim", "cluster_stuck", "cluster_frozen"}
    talks = {f"cluster_long_talk_{name}" for name in ("cpu", "events", "bytes", "compactions")}
    bounded = appends | claims | talks | {"cluster_workers", "cluster_node_p50"}
    assert {name for name, line in named.items() if line.has_bar} == bounded


async def test_a_bare_append_is_in_the_log_and_one_with_an_old_fence_is_an_error(postgres_url: str) -> None:
    log = await cluster_appends.RawLog.open(postgres_url, 2)
    db = await asyncpg.connect(postgres_url)
    try:
        bare = cluster_appends.Raw(log)
        await asyncio.gather(bare.append(0, 1), bare.append(1, 1))
        await bare.append(1, 2)
        found = await db.fetch("SELECT session, position, id FROM holdfast.event ORDER BY session, position")
        assert list(map(tuple, found)) == [
            ("session-0000", 1, "event-00000001"),
            ("session-0001", 1, "event-00000001"),
            ("session-0001", 2, "event-00000002"),
        ]
        await db.execute("UPDATE holdfast.session SET fence = fence + 1 WHERE id = 'session-0001'")
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(AssertionError, match="fence"):
                await bare.append(1, 3)
    finally:
        await db.close()
        await log.close()


async def test_a_database_of_the_run_is_gone_after_it_although_somebody_is_still_connected(place: Place) -> None:
    async with cluster.database(place, "of_this_run") as url:
        left = await asyncpg.connect(url)
        assert await left.fetchval("SELECT current_database()") == "of_this_run"
    left.terminate()
    db = await asyncpg.connect(place.postgres_url)
    try:
        assert await db.fetchval("SELECT count(*) FROM pg_database WHERE datname = 'of_this_run'") == 0
    finally:
        await db.close()


async def test_as_many_sessions_wait_in_the_large_database_as_in_the_small_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = msgspec.structs.replace(QUICK, cluster_sessions=(1_000, 3_000))
    monkeypatch.setattr(cluster_claims, "DATABASES", ("claims_a", "claims_b"))
    async with prepared(msgspec.structs.replace(place, size=size)) as urls:
        claimed = [await all_claims(url) for url in urls]
    assert claimed[0] == claimed[1]
    assert len(claimed[0]) == cluster_claims.OWNERS * cluster_claims.WAITING_OF_EACH
    assert len(set(claimed[0])) == cluster_claims.OWNERS


@asynccontextmanager
async def prepared(place: Place) -> AsyncIterator[list[str]]:
    """Both databases; they are dropped in the end."""
    try:
        await cluster_claims.prepare(place)
        yield [cluster.url_of(place, name) for name in cluster_claims.DATABASES]
    finally:
        db = await asyncpg.connect(place.postgres_url)
        for name in cluster_claims.DATABASES:
            await db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await db.close()


async def all_claims(url: str) -> list[str]:
    """Of whom they are."""
    store = await PostgresStore.open(url, node="test")
    try:
        return sorted(claim.lease.key.owner for claim in await store.claim(limit=1_000))
    finally:
        await store.close()


QUEUE = b'event: queue\ndata: {"messages":[]}\n\n'


def delta(text: str) -> bytes:
    return b'id: 3/m/0/9\nevent: delta\ndata: {"message_id":"m","block":0,"text":"%b"}\n\n' % text.encode()


@pytest.mark.parametrize("at_a_time", [1, 7, 65_536])
async def test_a_reader_notes_every_token_once_however_its_bytes_come(at_a_time: int) -> None:
    reader = Reader(3)
    said = QUEUE + delta("101 1") + delta("02 103 ") + b'id: 4\nevent: event\ndata: {"text":"104 "}\n\n'
    for start in range(0, len(said), at_a_time):
        reader.hear(said[start : start + at_a_time])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert sorted(await reader.all) == [101, 102, 103]


async def test_a_token_that_is_shown_twice_is_no_figure() -> None:
    reader = Reader(3)
    reader.hear(QUEUE + delta("101 102 ") + delta("102 "))
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(RuntimeError, match="twice"):
            await reader.all
