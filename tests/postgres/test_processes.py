"""Processes that die, stop, or are declared dead, and how other processes react. Times are the database's."""

import signal
from collections.abc import Callable

import asyncpg
import pytest

from holdfast.events.ids import Position
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Attachment, Committed, Unit
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.presence import client, decline_and_let_go, waiting
from holdfast.testing.store_conformance.words import KEY, MANY, create, hold, info, running, said, send, until_claimed
from tests.postgres.others import Other

pytestmark = pytest.mark.anyio

Start = Callable[[str], Other]


async def execute(url: str, statement: str) -> None:
    db = await asyncpg.connect(url)
    try:
        await db.execute(statement)
    finally:
        await db.close()


async def test_sessions_of_a_killed_process_can_be_claimed_after_its_lease_expired(
    store: PostgresStore, postgres_url: str, start: Start
) -> None:
    await create(store)
    await send(store, "m")
    other = start(postgres_url)
    assert other.hear() == "ready"
    assert other.tell("claim") == ["first"]
    assert other.tell("renew 1") is True
    other.signal(signal.SIGKILL)
    other.running.wait()
    (claim,) = await until_claimed(store)
    assert (claim.lease.key, claim.claims_without_progress) == (KEY, 2)


async def test_stopped_process_loses_its_lease_and_its_late_writes_are_refused(
    store: PostgresStore, postgres_url: str, start: Start
) -> None:
    await create(store)
    await send(store, "m")
    other = start(postgres_url)
    assert other.hear() == "ready"
    assert other.tell("claim") == ["first"]
    assert other.tell("progress") == "Committed"
    assert other.tell("renew 0.1") is True
    other.signal(signal.SIGSTOP)
    (claim,) = await until_claimed(store)
    assert claim.lease.key == KEY
    other.signal(signal.SIGCONT)
    assert other.tell("progress") == "FenceMissed"
    assert other.tell("claim") == []
    assert other.tell("renew") is False
    assert other.tell("renew") is True
    assert isinstance(await store.commit(Unit(key=KEY, fence=claim.lease.fence, events=(said("mine"),))), Committed)
    assert other.tell("progress") == "FenceMissed"
    assert other.tell("close") == "closed"


async def test_writes_acknowledged_by_a_killed_process_are_kept(
    store: PostgresStore, postgres_url: str, start: Start
) -> None:
    await create(store)
    other = start(postgres_url)
    assert other.hear() == "ready"
    other.order("write_until_killed")
    while other.hear() < 20:
        pass
    other.signal(signal.SIGKILL)
    acknowledged = max([20, *other.hear_all()])
    row = await store.row(KEY)
    assert row is not None
    assert row.head in (acknowledged, acknowledged + 1)
    events = await store.events_after(KEY, Position(0), limit=100_000)
    assert [event.position for event in events] == list(range(1, row.head + 1))
    assert isinstance(await store.commit(Unit(key=KEY, fence=None, events=(info("on"),))), Committed)


async def test_attachments_of_a_dead_process_end_with_it(store: PostgresStore, postgres_url: str, start: Start) -> None:
    await create(store)
    other = start(postgres_url)
    assert other.hear() == "ready"
    token = other.tell("attach")
    assert [found.process for found in await store.attachments(KEY)] == [token]
    other.signal(signal.SIGKILL)
    other.running.wait()
    assert await store.is_alive(token), "nobody can know yet"
    await execute(postgres_url, f"UPDATE holdfast.process SET alive_until = now() WHERE token = '{token}'")
    assert not await store.is_alive(token)
    assert await store.attachments(KEY) == ()
    assert await store.attach(Attachment(attachment_id="here", key=KEY, node="here"), ttl_seconds=60) == ()


async def test_death_of_a_process_wakes_a_session_where_a_client_of_another_declined(
    store: PostgresStore, postgres_url: str
) -> None:
    other = await PostgresStore.open(postgres_url, node="there")
    await waiting(store, client("a"))
    await other.attach(client("b"), ttl_seconds=3600)
    await decline_and_let_go(store, "a")
    await execute(postgres_url, f"UPDATE holdfast.process SET alive_until = now() WHERE token = '{other.process}'")
    assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]
    assert not await other.attached()
    await other.close()


async def test_dead_process_keeps_its_row_until_every_session_of_its_clients_was_woken(
    store: PostgresStore, postgres_url: str
) -> None:
    """A locked session row is skipped: the next look finds the process again, and wakes the session."""
    other = await PostgresStore.open(postgres_url, node="there")
    await waiting(store, client("a"))
    await other.attach(client("b"), ttl_seconds=3600)
    await decline_and_let_go(store, "a")
    await execute(postgres_url, f"UPDATE holdfast.process SET alive_until = now() WHERE token = '{other.process}'")
    blocking = await asyncpg.connect(postgres_url)
    async with blocking.transaction():
        await blocking.execute("SELECT 1 FROM holdfast.session FOR UPDATE")
        assert await store.claim(limit=MANY) == []
    await blocking.close()
    assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]
    await other.close()


async def test_expired_attachment_wakes_a_session_where_another_client_declined(
    store: PostgresStore, postgres_url: str
) -> None:
    await waiting(store, client("a"), client("b"), declined="a")
    await execute(postgres_url, "UPDATE holdfast.attachment SET expires_at = now() WHERE id LIKE '%/b'")
    await store._liveness.show()
    assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]


async def test_live_process_that_was_declared_dead_starts_over(store: PostgresStore, postgres_url: str) -> None:
    lease = await running(store)
    other = await PostgresStore.open(postgres_url, node="here")
    await execute(
        postgres_url,
        f"UPDATE holdfast.process SET alive_until = now(), leases_until = now() WHERE token = '{store.process}'",
    )
    (claim,) = await other.claim(limit=MANY)
    assert claim.lease.fence > lease.fence
    await store._liveness.show()
    assert await store.is_alive(store.process)
    assert await store.claim(limit=MANY) == [], "it is there, but must renew first"
    assert await store.renew(ttl_seconds=30) is False
    assert await store.renew(ttl_seconds=30) is True
    await other.close()
    assert (await hold(store)).fence > claim.lease.fence


async def test_only_the_database_s_clock_decides_when_a_lease_expires(postgres_url: str) -> None:
    past = await PostgresStore.open(postgres_url, node="here", clock=ManualClock(start_ms=1_000))
    future = await PostgresStore.open(postgres_url, node="here", clock=ManualClock(start_ms=9_000_000_000_000))
    await running(past)
    assert await future.claim(limit=MANY) == []
    assert await past.is_alive(future.process)
    assert await future.is_alive(past.process)
    assert await past.renew(ttl_seconds=30)
    assert await future.renew(ttl_seconds=30)
    await past.close()
    assert len(await future.claim(limit=MANY)) == 1
    await future.close()
