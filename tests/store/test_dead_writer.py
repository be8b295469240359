"""A writer thread that fails while its process lives: no call waits for it, and its sessions go on in other
processes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.ids import SessionId
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.writer import WriterCall
from holdfast.store.store import Committed, Key, Unit
from holdfast.testing.store_conformance.words import KEY, MANY, create, hold, info, running, send

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, node="here")
    yield store
    async with asyncio.timeout(30):
        await store.close()


def fail_with_a_bug(store: SqliteStore) -> None:
    """Put a value into the queue that no writer can handle."""
    store._writer._queue.put(object())  # type: ignore[arg-type]


def fail_rollback_and_reopening(store: SqliteStore) -> None:
    """The connection is lost, and no other connection to the file can be opened."""
    store._writer._db.close()
    store._path.rename(store._path.with_name("elsewhere.db"))


FAILURES = (fail_with_a_bug, fail_rollback_and_reopening)

in_each_way = pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: fail.__name__)


async def code_of(asked: Callable[[], Awaitable[Any]]) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        async with asyncio.timeout(30):
            await asked()
    return raised.value.code


@in_each_way
async def test_every_call_fails_after_the_writer_failed(
    store: SqliteStore, fail: Callable[[SqliteStore], None]
) -> None:
    await create(store)
    fail(store)
    unit = Unit(key=KEY, fence=None, events=(info("late"),))
    under_way = [asyncio.ensure_future(store.commit(unit)) for _ in range(3)]
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)
    codes = {getattr(outcome, "code", outcome) for outcome in outcomes}
    # A batch that lost its connection reports that reason; later calls report the failed writer.
    assert codes <= {"store_writer_died", "store_failed", "store_file_lost"}
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    assert await code_of(lambda: store.commit(unit)) == "store_writer_died"
    assert await code_of(lambda: store.renew(ttl_seconds=30)) == "store_writer_died"
    assert await code_of(lambda: store.row(KEY)) == "store_writer_died"
    async with asyncio.timeout(30):
        await store.close()


async def test_job_handed_in_while_the_writer_fails_fails_too(store: SqliteStore) -> None:
    """The thread has emptied its queue for the last time, and the store does not know of its failure yet."""
    fail_with_a_bug(store)
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    late = WriterCall(asyncio.get_running_loop().create_future(), "", lambda db: (None, None))
    store._writer.submit(late)
    assert await code_of(lambda: late.future) == "store_writer_died"


async def test_leases_of_a_failed_writer_can_be_claimed_at_once(store: SqliteStore, path: Path) -> None:
    lease = await running(store)
    await store.renew(ttl_seconds=3600)
    other = await SqliteStore.open(path, node="here")
    assert await other.claim(limit=MANY) == []
    fail_with_a_bug(store)
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    assert store._dying is not None
    await store._dying
    assert (await hold(other)).fence != lease.fence
    await other.close()


async def test_open_transaction_of_a_failed_writer_does_not_block_other_processes(
    store: SqliteStore, path: Path
) -> None:
    await create(store)
    store._writer._db.execute("BEGIN IMMEDIATE")
    fail_with_a_bug(store)
    assert await code_of(lambda: send(store, "m")) == "store_writer_died"
    other = await SqliteStore.open(path, node="here")
    assert isinstance(await create(other, Key(KEY.owner, SessionId("theirs"))), Committed)
    await other.close()


async def test_failed_connection_is_replaced_and_the_writer_goes_on(store: SqliteStore) -> None:
    await create(store)
    store._writer._db.close()
    with pytest.raises(StoreUnavailable):
        await send(store, "m")
    assert isinstance(await store.commit(Unit(key=KEY, fence=None, events=(info("on"),))), Committed)


async def test_writer_failure_is_logged_once_as_critical(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    fail_with_a_bug(store)
    for _ in range(3):
        await code_of(lambda: send(store, "m"))
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    assert caplog.records[0].exc_info is not None


async def test_writer_failure_stops_the_runtime_s_work_and_every_call_raises(path: Path) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold_back(piece: int) -> None:
        reached.set()
        await never.wait()

    model = ScriptedModel(Script(rules=(Rule(replies=(Reply(text="never said"),)),)), gate=hold_back)
    async with asyncio.timeout(60), Runtime(database=path, model=model) as runtime:
        session = await runtime.session()
        turn = asyncio.ensure_future(session.run("hello"))
        await reached.wait()
        assert isinstance(runtime.store, SqliteStore)
        fail_with_a_bug(runtime.store)
        async with asyncio.timeout(30):
            error = await runtime.until_failed()
            assert error.code == "store_writer_died"
            with pytest.raises(StoreUnavailable) as raised:
                await turn
        assert raised.value.code == "store_writer_died"
        assert await code_of(lambda: session.send("again")) == "store_writer_died"
        assert await code_of(lambda: anext(runtime.sessions())) == "store_writer_died"
        assert runtime.store._dying is not None
        await runtime.store._dying
        assert runtime.worker.sessions_held == 0
        other = await SqliteStore.open(path, node=runtime._node, tools=runtime._registry.names())
        assert [claim.lease.key for claim in await other.claim(limit=MANY)] == [session.key]
        await other.close()
