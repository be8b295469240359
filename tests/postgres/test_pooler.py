"""Behind a pooler that gives each transaction another connection, no state may be left in a connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.events.ids import Key, Position, SessionId
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Store, Unit
from holdfast.testing.store_conformance import StoreConformance
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    committed,
    create,
    hold,
    info,
    running,
    said,
    send,
)
from tests.postgres.pooler import Pooler
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(postgres_databases: Databases) -> AsyncIterator[str]:
    name = await postgres_databases.borrow()
    yield name
    postgres_databases.give_back(name)


@pytest.fixture
async def pooler(postgres_databases: Databases) -> AsyncIterator[Pooler]:
    async with Pooler(postgres_databases.server.socket) as pooler:
        yield pooler


@pytest.fixture
async def store(pooler: Pooler, database: str) -> AsyncIterator[Store]:
    store = await PostgresStore.open(pooler.url(database), node="here", is_pooled=True)
    yield store
    await store.close()


@pytest.mark.parametrize(
    "name",
    [
        "test_concurrent_appends_leave_no_gap_and_no_duplicate",
        "test_a_fenced_unit_writes_all_of_its_parts",
        "test_refused_unit_writes_nothing_and_the_rest_of_its_batch_commits",
        "test_promotion_of_a_stale_version_cannot_lose_an_edit",
        "test_catch_up_gives_the_log_and_the_message_in_flight",
        "test_process_with_an_expired_lease_must_renew_before_it_claims",
        "test_a_client_tool_belongs_to_one_attachment_at_a_time",
        "test_deleted_session_is_gone_for_good",
    ],
)
async def test_store_conforms_through_a_pooler(pooler: Pooler, store: Store, name: str) -> None:
    await getattr(StoreConformance(), name)(store)
    assert pooler.switches == pooler.transactions > 5, "every transaction had another connection than the one before"


async def test_store_without_the_pooler_setting_fails_behind_a_pooler(pooler: Pooler, database: str) -> None:
    """Shows that the tests above can fail."""

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            store = await PostgresStore.open(pooler.url(database), node="here")
            stack.push_async_callback(store.close)
            for number in range(10):
                await asyncio.gather(create(store), send(store, f"m{number}"), store.row(KEY), store.claim(limit=1))

    with pytest.raises(StoreUnavailable):
        await work()


async def test_changes_are_polled_for_without_a_direct_url(pooler: Pooler, store: Store, database: str) -> None:
    await hears_changes(store, await PostgresStore.open(pooler.url(database), node="there", is_pooled=True))


async def test_changes_are_received_through_the_direct_url(
    postgres_databases: Databases, pooler: Pooler, database: str
) -> None:
    direct = postgres_databases.server.url(database)
    here, there = [
        await PostgresStore.open(pooler.url(database), node="here", is_pooled=True, direct_url=direct) for _ in range(2)
    ]
    await hears_changes(here, there)
    assert here._changes._is_listening
    await here.close()


async def hears_changes(here: Store, there: Store) -> None:
    await create(there)
    changes = here.changes(wanted=lambda: True)
    heard = asyncio.ensure_future(anext(changes))
    async with asyncio.timeout(30):
        while not heard.done():
            await there.commit(Unit(key=KEY, fence=None, events=(info("x"),)))
    await heard
    await there.close()


async def test_commit_whose_response_is_lost_is_unknown_and_its_holder_starts_over(
    pooler: Pooler, store: Store
) -> None:
    """The commit is on disk, but its response was lost: the holder finds it by reading the log again."""
    lease = await running(store)
    pooler.loses_commit_of = b"UPDATE holdfast.session"
    with pytest.raises(StoreUnavailable) as raised:
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("was it written?"),)))
    assert raised.value.code == "store_unreachable"
    assert await store.release(lease, seen_tail=-1, how="failed")
    again = await hold(store)
    loaded = await store.load(KEY, fold_version=1)
    assert loaded is not None
    assert [event.position for event in loaded.events] == [1, 2, 3, 4], "it was"
    assert committed(await store.commit(Unit(key=KEY, fence=again.fence, events=(said("on"),)))).head == 5


async def test_put_whose_response_is_lost_is_stored_once(pooler: Pooler, store: Store) -> None:
    await create(store)
    pooler.loses_commit_of = b"INSERT INTO holdfast.inbox"
    with pytest.raises(StoreUnavailable):
        await send(store, "m")
    again = await send(store, "m")
    assert getattr(again, "duplicate", False)
    assert len(await store.waiting_items(KEY)) == 1
    assert len(await store.events_after(KEY, Position(0), limit=MANY)) == 1


async def test_batch_whose_response_is_lost_is_not_retried(pooler: Pooler, store: Store) -> None:
    """Each of its units may be on disk: retrying them one by one would write them twice."""
    keys = [Key(KEY.owner, SessionId(f"s{number}")) for number in range(5)]
    for key in keys:
        await create(store, key)
    pooler.loses_commit_of = b"UPDATE holdfast.session"
    units = [Unit(key=key, fence=None, events=(info("once"),)) for key in keys]
    outcomes = await asyncio.gather(*map(store.commit, units), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    for key in keys:
        assert len(await store.events_after(key, Position(0), limit=MANY)) == 2
