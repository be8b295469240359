"""A process that stands still in the middle of a transaction holds what it locked, and nothing else: everything that
concerns other sessions goes on, and what waits for its locks holds nobody else up. No test waits for a timeout: each
asserts that the frozen process still has its transaction when the others are done."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence

import asyncpg
import pytest

from holdfast.events.ids import Key, Owner, Position, SessionId
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres import connections, flusher
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.store import WRITING, PostgresStore
from holdfast.store.postgres.units import Group, Units
from holdfast.store.store import Accepted, Committed, Lease, NewSession, Unit
from holdfast.testing.store_conformance.words import MANY, committed, create, said, send, started
from tests.postgres.another_process import LIMITS
from tests.postgres.others import Other

pytestmark = pytest.mark.anyio

Start = Callable[[str], Other]

ANN = Owner("ann")
TARGET = Key(ANN, SessionId("target"))
KEYS = [Key(Owner(owner), SessionId(f"session {number}")) for owner in ("ann", "bob") for number in range(10)]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_url, node="here", limits=LIMITS)
    yield store
    await store.close()


@pytest.fixture
def frozen(start: Start, postgres_url: str) -> Callable[[str, str], Other]:
    """Another process, frozen at a point of an order."""

    def freeze(point: str, order: str) -> Other:
        other = start(postgres_url)
        assert other.hear() == "ready"
        other.tell(f"freeze_at {point}")
        other.order(order)
        assert other.hear() == "frozen"
        return other

    return freeze


async def standing(url: str) -> set[int]:
    """The server processes whose client is frozen in a transaction."""
    db = await asyncpg.connect(url)
    found = await db.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    await db.close()
    return {row[0] for row in found}


async def held(store: PostgresStore, *keys: Key) -> dict[Key, Lease]:
    for key in keys:
        await create(store, key)
        await send(store, "first", key=key)
    return {claim.lease.key: claim.lease for claim in await store.claim(limit=MANY)}


def unit(lease: Lease, text: str) -> Unit:
    return Unit(key=lease.key, fence=lease.fence, events=(said(text),))


def put_into_target(number: int = 0) -> str:
    return f"put ann {TARGET.session}{number or ''} theirs"


# One frozen put


async def test_frozen_put_delays_no_unit_of_another_session(
    store: PostgresStore, postgres_url: str, frozen: Callable[[str, str], Other]
) -> None:
    leases = await held(store, TARGET, *KEYS)
    other = frozen("put:message:before", put_into_target())
    stands = await standing(postgres_url)
    assert len(stands) == 1
    late = [asyncio.create_task(store.commit(unit(leases[TARGET], text))) for text in "abc"]
    for text in "abc":
        outcomes = await asyncio.gather(*(store.commit(unit(leases[key], text)) for key in KEYS))
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert stands <= await standing(postgres_url)
    assert not any(task.done() for task in late)
    late.append(asyncio.create_task(store.commit(unit(leases[TARGET], "d"))))
    other.signal(signal.SIGCONT)
    assert other.hear() == "Accepted"
    assert [committed(await task).head for task in late] == [2, 3, 4, 5], "in the order in which they were handed in"
    events = await store.events_after(TARGET, Position(1), limit=MANY)
    assert [getattr(found.body, "content", "") for found in events] == [*"abcd"]


async def test_promoting_unit_waits_for_a_frozen_put_of_its_session_only(
    store: PostgresStore, postgres_url: str, frozen: Callable[[str, str], Other]
) -> None:
    """Units that write more than events take another path to the database."""
    leases = await held(store, TARGET, *KEYS)
    other = frozen("put:message:before", put_into_target())
    stands = await standing(postgres_url)
    assert len(stands) == 1

    def closes(lease: Lease) -> Unit:
        return Unit(key=lease.key, fence=lease.fence, events=(said("x"),), ends_commands=True)

    late = asyncio.create_task(store.commit(closes(leases[TARGET])))
    new = [Key(Owner(f"new {key.owner}"), key.session) for key in KEYS]
    made = [Unit(key=key, fence=None, events=(started(key),), creates=NewSession(created_at=1)) for key in new]
    for outcome in await asyncio.gather(*map(store.commit, [closes(leases[key]) for key in KEYS] + made)):
        committed(outcome)
    assert stands <= await standing(postgres_url)
    assert not late.done()
    other.signal(signal.SIGKILL)
    assert committed(await late).head == 2


async def test_sessions_of_other_owners_are_claimed_while_a_put_is_frozen(
    store: PostgresStore, postgres_url: str, frozen: Callable[[str, str], Other]
) -> None:
    await create(store, TARGET)
    await create(store, KEYS[0])
    await send(store, "m", key=KEYS[0])
    other = frozen("put:message:before", put_into_target())
    stands = await standing(postgres_url)
    assert len(stands) == 1
    for key in KEYS[1:]:
        if key.owner != ANN:
            await create(store, key)
            await send(store, "m", key=key)
    claimed = [claim.lease.key for claim in await store.claim(limit=MANY)]
    assert sorted(claimed) == [key for key in KEYS if key.owner != ANN]
    assert stands <= await standing(postgres_url)
    other.signal(signal.SIGCONT)
    assert other.hear() == "Accepted"
    assert {claim.lease.key for claim in await store.claim(limit=MANY)} == {TARGET, KEYS[0]}


# As many frozen puts as a process has connections to write with


async def test_frozen_puts_do_not_use_up_the_connections_of_another_process(
    store: PostgresStore, postgres_url: str, start: Start
) -> None:
    targets = [Key(ANN, SessionId(f"target{number}")) for number in range(1, WRITING + 1)]
    for key in [*targets, *KEYS]:
        await create(store, key)
    others = [start(postgres_url) for _ in targets]
    for other, target in zip(others, targets, strict=True):
        assert other.hear() == "ready"
        other.tell("freeze_at attach:attachment:before")
        other.order(f"attach_to ann {target.session}")
        assert other.hear() == "frozen"
    stands = await standing(postgres_url)
    assert len(stands) == WRITING
    late = [asyncio.create_task(send(store, "mine", key=target)) for target in targets for _ in range(3)]
    done = await asyncio.gather(*(send(store, "m", key=key) for key in KEYS))
    assert all(isinstance(put, Accepted) for put in done)
    claimed = await store.claim(limit=MANY)
    assert sorted(claim.lease.key for claim in claimed) == KEYS
    for outcome in await asyncio.gather(*(store.commit(unit(claim.lease, "x")) for claim in claimed)):
        committed(outcome)
    assert all(await asyncio.gather(*(store.release(claim.lease, seen_tail=1, how="done") for claim in claimed)))
    assert stands <= await standing(postgres_url)
    assert not any(task.done() for task in late)
    for other in others:
        other.signal(signal.SIGKILL)
    assert all(isinstance(put, Accepted) for put in await asyncio.gather(*late))


# A frozen claim


async def test_frozen_claim_blocks_only_the_sessions_that_it_claims(
    store: PostgresStore, postgres_url: str, frozen: Callable[[str, str], Other], start: Start
) -> None:
    dead = start(postgres_url)
    assert dead.hear() == "ready"
    await create(store, TARGET)
    await send(store, "m", key=TARGET)
    assert dead.tell("claim") == [TARGET.session]
    dead.signal(signal.SIGKILL)
    dead.running.wait()
    db = await asyncpg.connect(postgres_url)
    await db.execute("UPDATE holdfast.process SET alive_until = now(), leases_until = now() WHERE node = 'there'")
    other = frozen("claim:sessions:before", "claim")
    stands = await standing(postgres_url)
    assert len(stands) == 1
    keys = [key for key in KEYS if key.owner != ANN]
    for key in keys:
        await create(store, key)
        await send(store, "m", key=key)
    claimed = await store.claim(limit=MANY)
    assert sorted(claim.lease.key for claim in claimed) == keys
    for outcome in await asyncio.gather(*(store.commit(unit(claim.lease, "x")) for claim in claimed)):
        committed(outcome)
    assert await store.renew(ttl_seconds=30)
    assert stands <= await standing(postgres_url)
    other.signal(signal.SIGKILL)
    other.running.wait()
    await db.close()


async def test_locked_session_of_a_dead_process_does_not_delay_its_other_sessions(
    store: PostgresStore, postgres_url: str, frozen: Callable[[str, str], Other], start: Start
) -> None:
    """The session is freed once it is no longer locked."""
    dead = start(postgres_url)
    assert dead.hear() == "ready"
    for key in (TARGET, *KEYS):
        await create(store, key)
        await send(store, "m", key=key)
    while len(dead.tell("claim")):
        pass
    dead.signal(signal.SIGKILL)
    dead.running.wait()
    other = frozen("put:message:before", put_into_target())
    stands = await standing(postgres_url)
    assert len(stands) == 1
    db = await asyncpg.connect(postgres_url)
    await db.execute(
        "UPDATE holdfast.process SET alive_until = now(), leases_until = now()"
        " WHERE token IN (SELECT lease_holder FROM holdfast.session)"
    )
    claimed = [claim.lease.key for claim in await store.claim(limit=MANY)]
    assert sorted(claimed) == [key for key in KEYS if key.owner != ANN]
    assert stands <= await standing(postgres_url)
    other.signal(signal.SIGCONT)
    assert other.hear() == "Accepted"
    assert {claim.lease.key for claim in await store.claim(limit=MANY)} == {TARGET, *KEYS} - set(claimed)
    await db.close()


# Locks that are not released in time


async def test_unit_that_waits_too_long_for_a_lock_fails_alone(
    store: PostgresStore,
    postgres_url: str,
    frozen: Callable[[str, str], Other],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flusher, "PATIENCE_SECONDS", 0.2)
    leases = await held(store, TARGET, *KEYS)
    other = frozen("put:message:before", put_into_target())
    stands = await standing(postgres_url)
    assert len(stands) == 1
    late = asyncio.create_task(store.commit(unit(leases[TARGET], "x")))
    while not late.done():
        for outcome in await asyncio.gather(*(store.commit(unit(leases[key], "x")) for key in KEYS)):
            committed(outcome)
    with pytest.raises(StoreUnavailable) as raised:
        await late
    assert raised.value.code == "store_busy"
    assert stands <= await standing(postgres_url)
    other.signal(signal.SIGCONT)
    assert other.hear() == "Accepted"
    assert committed(await store.commit(unit(leases[TARGET], "y"))).head == 2, "what failed was not written"


SLOW = """
CREATE FUNCTION holdfast.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.session = 'target' AND NEW.position > 1 THEN PERFORM pg_sleep(60); END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON holdfast.event FOR EACH ROW EXECUTE FUNCTION holdfast.slow();
"""


async def test_unit_that_exceeds_the_statement_timeout_fails_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections._SETTINGS, "statement_timeout", "500")
    store = await PostgresStore.open(postgres_url, node="here")
    leases = await held(store, TARGET, *KEYS)
    db = await asyncpg.connect(postgres_url)
    await db.execute(SLOW)
    try:
        tasks = {key: asyncio.create_task(store.commit(unit(lease, "x"))) for key, lease in leases.items()}
        with pytest.raises(StoreUnavailable) as raised:
            await tasks.pop(TARGET)
        assert raised.value.code == "store_busy"
        for task in tasks.values():
            committed(await task)
    finally:
        await db.execute("DROP FUNCTION holdfast.slow CASCADE")
        await db.close()
        await store.close()


async def test_later_unit_does_not_overtake_an_earlier_one_that_met_a_lock(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later unit is already in the queue when the earlier one stands aside."""
    leases = await held(store, TARGET)
    db = await asyncpg.connect(postgres_url)
    lock = db.transaction()
    await lock.start()
    await db.execute("SELECT 1 FROM holdfast.session FOR UPDATE")
    tried, handed_in = asyncio.Event(), asyncio.Event()
    run = Units.run

    async def wait_after_the_first(self: Units, link: Link, groups: Sequence[Group]) -> bool:
        has_written = await run(self, link, groups)
        if not tried.is_set():
            tried.set()
            await handed_in.wait()
        return has_written

    monkeypatch.setattr(Units, "run", wait_after_the_first)
    first = asyncio.create_task(store.commit(unit(leases[TARGET], "a")))
    await tried.wait()
    second = asyncio.create_task(store.commit(unit(leases[TARGET], "b")))
    await asyncio.sleep(0)
    await lock.rollback()
    handed_in.set()
    assert [committed(await task).head for task in (first, second)] == [2, 3]
    await db.close()
