"""PostgreSQL is restarted, cut off, read-only or out of connections. Acknowledged writes are kept, other writes are
reported as unknown, and the store does not have to be opened again."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast.events.ids import Key, Owner, Position, SessionId
from holdfast.store import crash_points
from holdfast.store.errors import StoreUnavailable, StoreUnusable
from holdfast.store.postgres import connections, flusher
from holdfast.store.postgres.changes import Announcer
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Accepted, Committed, Unit
from holdfast.testing.store_conformance.words import KEY, committed, create, hold, info, running, said, send
from proof.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

NAMES = itertools.count(1)
EVERYTHING = 1_000_000


@pytest.fixture
async def url(own_server: PostgresServer) -> str:
    name = f"own_{next(NAMES)}"
    await execute(own_server.url(), f"CREATE DATABASE {name}")
    return own_server.url(name)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, node="here")
    yield store
    await store.close()


async def execute(url: str, statement: str) -> None:
    db = await asyncpg.connect(url)
    try:
        await db.execute(statement)
    finally:
        await db.close()


async def end_all_connections(server: PostgresServer) -> None:
    others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
    await execute(server.url(), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


async def until_it_works(store: PostgresStore, unit: Unit) -> Committed:
    async with asyncio.timeout(60):
        while True:
            try:
                return committed(await store.commit(unit))
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_server_restart_during_commits_loses_no_acknowledged_write(
    own_server: PostgresServer, store: PostgresStore
) -> None:
    keys = [Key(Owner("ann"), SessionId(f"s{number}")) for number in range(8)]
    for key in keys:
        await create(store, key)
    known: dict[tuple[Key, str], bool] = {}
    enough, restarted = asyncio.Event(), asyncio.Event()

    async def write(key: Key) -> None:
        for number in itertools.count():
            name = f"{number}"
            try:
                committed(await store.commit(Unit(key=key, fence=None, events=(info(name),))))
                known[key, name] = True
            except StoreUnavailable:
                known[key, name] = False
            if number == 20:
                enough.set()
            if restarted.is_set() and known[key, name]:
                return

    async def put(key: Key) -> None:
        for number in itertools.count():
            try:
                assert isinstance(await send(store, f"m{number}", key=key, limit=EVERYTHING), Accepted)
                known[key, f"m{number}"] = True
            except StoreUnavailable:
                known[key, f"m{number}"] = False
            if restarted.is_set() and known[key, f"m{number}"]:
                return

    writing = [asyncio.ensure_future(work(key)) for key in keys for work in (write, put)]
    await enough.wait()
    await asyncio.to_thread(own_server.restart, "immediate")
    restarted.set()
    async with asyncio.timeout(120):
        await asyncio.gather(*writing)
    for key in keys:
        events = await store.events_after(key, Position(0), limit=EVERYTHING)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        texts = [getattr(event.body, "message", "") for event in events[1:]]
        assert len(texts) == len(set(texts)), "nothing was written twice"
        items = {item.key for item in await store.waiting_items(key)}
        acknowledged = {name for (of, name), is_known in known.items() if of == key and is_known}
        unknown = {name for (of, name), is_known in known.items() if of == key and not is_known}
        assert acknowledged <= set(texts) | items <= acknowledged | unknown


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_server_that_stops_at_a_commit_leaves_all_of_it_or_nothing(
    own_server: PostgresServer, store: PostgresStore, moment: str
) -> None:
    lease = await running(store)
    unit = Unit(key=KEY, fence=lease.fence, events=(said("a"), said("b")), title="new", status="idle")

    def end(point: str) -> None:
        if point == f"commit:user.message:{moment}":
            own_server.restart("immediate")

    crash_points.install(end)
    try:
        if moment == "before":
            with pytest.raises(StoreUnavailable) as raised:
                await store.commit(unit)
            assert raised.value.code == "store_unreachable"
        else:
            committed(await store.commit(unit))
    finally:
        crash_points.install(None)
    row = await store.row(KEY)
    assert row is not None
    assert (row.head, row.title, row.status) == ((3, "", "running") if moment == "before" else (5, "new", "idle"))


async def test_calls_wait_for_a_server_that_is_away_for_a_moment(
    own_server: PostgresServer, store: PostgresStore
) -> None:
    """Nothing was sent yet, so no outcome is unknown."""
    await create(store)
    await asyncio.to_thread(own_server.stop)
    asked = asyncio.ensure_future(store.commit(Unit(key=KEY, fence=None, events=(info("x"),))))
    read = asyncio.ensure_future(store.row(KEY))
    await asyncio.to_thread(own_server.start)
    assert committed(await asked).head == 2
    assert await read is not None


async def test_server_that_stays_away_is_reported_as_unreachable(
    own_server: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_SECONDS", 0.2)
    lease = await running(store)
    await asyncio.to_thread(own_server.stop, "immediate")
    try:
        work = (
            store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),))),
            send(store, "m"),
            store.row(KEY),
            store.renew(ttl_seconds=30),
            store.claim(limit=1),
        )
        for asked in work:
            with pytest.raises(StoreUnavailable) as raised:
                await asked
            assert raised.value.code == "store_unreachable"
        with pytest.raises(StoreUnavailable):
            await PostgresStore.open(own_server.url(), node="here")
    finally:
        await asyncio.to_thread(own_server.start)
    assert (await until_it_works(store, Unit(key=KEY, fence=lease.fence, events=(said("on"),)))).head == 4


async def test_connections_lost_while_unused_are_opened_again(own_server: PostgresServer, store: PostgresStore) -> None:
    lease = await running(store)
    for _ in range(2):
        await asyncio.gather(*(store.row(KEY) for _ in range(8)))
        await end_all_connections(own_server)
        assert all(await asyncio.gather(*(store.row(KEY) for _ in range(8))))
        assert await store.renew(ttl_seconds=30)
        await until_it_works(store, Unit(key=KEY, fence=lease.fence, events=(said("x"),)))


END_ALL = """
import asyncio, sys, asyncpg

async def main():
    db = await asyncpg.connect(sys.argv[1])
    await db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await db.close()

asyncio.run(main())
"""


async def test_a_read_survives_however_many_unused_connections_were_lost_unnoticed(
    own_server: PostgresServer, store: PostgresStore, url: str
) -> None:
    await create(store)
    await asyncio.gather(*(store.row(KEY) for _ in range(8)))
    # The event loop is blocked meanwhile, and so does not notice that they are closed.
    subprocess.run([sys.executable, "-c", END_ALL, url], check=True)  # noqa: ASYNC221
    assert await store.row(KEY) is not None


async def test_changes_are_received_again_after_the_listening_connection_was_lost(
    own_server: PostgresServer, store: PostgresStore, url: str
) -> None:
    await create(store)
    other = await PostgresStore.open(url, node="there")
    changes = other.changes(wanted=lambda: True)
    async with asyncio.timeout(60):
        for _ in range(2):
            heard = asyncio.ensure_future(anext(changes))
            while not heard.done():
                await until_it_works(store, Unit(key=KEY, fence=None, events=(info("x"),)))
            await heard
            listener = await listening(own_server)
            await end_all_connections(own_server)
            await until_another_listens(own_server, listener)
    await other.close()


async def test_commit_of_a_process_that_died_before_announcing_it_is_noticed(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(announcer: Announcer) -> None:
        """The process dies just before its announcement."""

    monkeypatch.setattr(Announcer, "_say", die)
    await create(store)
    other = await PostgresStore.open(url, node="there")
    changes = other.changes(wanted=lambda: True)
    async with asyncio.timeout(60):
        while not other._changes._is_listening:
            await anext(changes)
        for event in other._changes._heard:
            event.clear()  # The start of listening sets it, too.
        heard = asyncio.ensure_future(anext(changes))
        await store.commit(Unit(key=KEY, fence=None, events=(info("the last words"),)))
        await heard
    await other.close()


async def until_another_listens(server: PostgresServer, listener: int | None) -> None:
    while True:
        if await listening(server) not in (None, listener):
            return
        await asyncio.sleep(0.01)


async def listening(server: PostgresServer) -> int | None:
    """The server process of the listening connection."""
    db = await asyncpg.connect(server.url())
    try:
        pid: int | None = await db.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND application_name = 'holdfast'"
        )
        return pid
    finally:
        await db.close()


async def commit_over_a_new_connection(store: PostgresStore, unit: Unit) -> None:
    while True:
        try:
            await store.commit(unit)
        except StoreUnavailable as error:
            if error.code != "store_unreachable":
                raise


async def test_read_only_server_is_reported_and_reads_go_on(
    own_server: PostgresServer, store: PostgresStore, url: str
) -> None:
    lease = await running(store)
    name = url.partition("?")[0].rpartition("/")[2]
    await execute(own_server.url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await end_all_connections(own_server)
    unit = Unit(key=KEY, fence=lease.fence, events=(said("x"),))
    with pytest.raises(StoreUnavailable) as raised:
        await commit_over_a_new_connection(store, unit)
    assert raised.value.code == "store_read_only"
    assert "primary" in raised.value.message
    with pytest.raises(StoreUnavailable):
        await send(store, "m")
    assert await store.row(KEY) is not None
    await execute(own_server.url(), f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    await end_all_connections(own_server)
    assert (await until_it_works(store, unit)).head >= 4


async def test_server_without_a_free_connection_is_reported_as_busy(
    own_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_SECONDS", 0.2)
    name = url.partition("?")[0].rpartition("/")[2]
    await execute(own_server.url(), f"CREATE ROLE r_{name} LOGIN; ALTER DATABASE {name} OWNER TO r_{name}")
    await execute(own_server.url(), f"ALTER DATABASE {name} CONNECTION LIMIT 1")
    store = await PostgresStore.open(url.replace("//postgres@", f"//r_{name}@"), node="here")
    with pytest.raises(StoreUnavailable) as raised:
        await store.row(KEY)
    assert (raised.value.code, "max_connections" in raised.value.message) == ("store_busy", True)
    assert await store.renew(ttl_seconds=30), "its own connection is kept"
    await execute(own_server.url(), f"ALTER DATABASE {name} CONNECTION LIMIT 20")
    assert await store.row(KEY) is None
    await store.close()


async def test_row_that_stays_locked_is_reported_as_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(flusher, "PATIENCE_SECONDS", 0.2)
    store = await PostgresStore.open(url, node="here")
    lease = await running(store)
    db = await asyncpg.connect(url)
    await db.execute("BEGIN; SELECT 1 FROM holdfast.session FOR UPDATE")
    for asked in (
        store.release(lease, seen_tail=1, how="done"),
        store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),))),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            await asked
        assert raised.value.code == "store_busy"
    await db.close()
    assert await store.release(lease, seen_tail=1, how="done")
    await store.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("/own_", "/there_is_no_"), "store_not_found"),
        (("//postgres@", "//nobody-of-that-name:s3cret@"), "store_refused"),
    ],
)
async def test_failed_open_is_reported_with_its_reason_and_without_the_password(
    url: str, change: tuple[str, str], code: str
) -> None:
    with pytest.raises(StoreUnusable) as raised:
        await PostgresStore.open(url.replace(*change), node="here")
    assert raised.value.code == code
    assert "s3cret" not in f"{raised.value} {raised.value.__cause__}"


async def test_holder_whose_commit_failed_can_claim_its_session_again(
    own_server: PostgresServer, store: PostgresStore
) -> None:
    lease = await running(store)
    await asyncio.to_thread(own_server.restart, "immediate")
    assert await store.release(lease, seen_tail=-1, how="failed")
    again = await hold(store)
    assert again.fence > lease.fence


async def test_connection_past_its_lifetime_is_replaced(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(store)
    first = await backend_of(store)
    assert await backend_of(store) == first
    monkeypatch.setattr(connections, "LIFETIME_SECONDS", 0.0)
    assert await backend_of(store) != first


async def backend_of(store: PostgresStore) -> int:
    """The server process that runs the next read."""
    link = await store._reads.take()
    try:
        return int(await link.raw.fetchval("SELECT pg_backend_pid()"))
    finally:
        store._reads.give_back(link)


@pytest.mark.parametrize("is_pooled", [False, True])
async def test_process_that_freezes_between_prepare_and_execute_loses_its_row_locks(
    url: str, monkeypatch: pytest.MonkeyPatch, is_pooled: bool
) -> None:
    """PostgreSQL counts such a process as active: neither the idle timeout nor the statement timeout ends it."""
    monkeypatch.setattr(connections, "_TRANSACTION_BOUND", "transaction_timeout = 300")
    address = connections.DatabaseAddress(url, is_pooled=is_pooled)
    still, other = await address.connect(), await asyncpg.connect(url)
    try:
        await other.execute("CREATE TABLE place (x integer); INSERT INTO place VALUES (1)")
        await still.execute(address.begin)
        await still.fetch("SELECT x FROM place FOR UPDATE")
        await still.prepare("SELECT x FROM place WHERE x = $1")  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            assert await other.fetchval("SELECT x FROM place FOR UPDATE") == 1
    finally:
        still.terminate()
        other.terminate()
