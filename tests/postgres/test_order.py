"""With very many owners waiting, each gets its turn, and owners whose sessions this process can't run cost nothing."""

import asyncpg
import pytest

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.turn_limits import TurnLimits
from holdfast.testing.store_conformance.words import create, send

pytestmark = pytest.mark.anyio

OWNERS = 1_000

WAITING = """
INSERT INTO holdfast.session (owner, id, head, status, runnable, runnable_since, tools, created_at, updated_at)
SELECT 'owner ' || lpad(n::text, 4, '0'), 'session', 1, 'queued', true, $2::bigint + n,
       CASE WHEN $3::text = '' THEN ARRAY[]::text[] ELSE ARRAY[replace($3::text, 'N', n::text)] END, 1, 1
  FROM generate_series(1, $1::integer) AS n
"""

RUNNING = """
INSERT INTO holdfast.session (owner, id, head, status, runnable, runnable_since, lease_holder, created_at, updated_at)
SELECT 'owner ' || lpad(n::text, 4, '0'), 'running', 1, 'running', true, 1, $2::text, 1, 1
  FROM generate_series(1, $1::integer) AS n
"""


async def fill(url: str, statement: str, *given: object) -> None:
    db = await asyncpg.connect(url)
    await db.execute(statement, *given)
    await db.close()


def later() -> int:
    """A time such that no session has waited long enough to be claimed as unplaced."""
    return 1 << 50


async def able(store: PostgresStore, owner: str) -> Key:
    """A session in the middle of all owners that this process may run."""
    key = Key(Owner(owner), SessionId("able"))
    await create(store, key)
    await send(store, "m", key=key)
    return key


async def claimed(store: PostgresStore, *, limit: int) -> list[Key]:
    return [claim.lease.key for claim in await store.claim(limit=limit)]


async def test_each_of_a_thousand_waiting_owners_gets_its_turn(store: PostgresStore, postgres_url: str) -> None:
    await fill(postgres_url, WAITING, OWNERS, later(), "")
    found = [key.owner for _ in range(OWNERS // 50) for key in await claimed(store, limit=50)]
    assert len(set(found)) == OWNERS


@pytest.mark.parametrize("tool", ["missing", "missing N"])
async def test_thousand_stuck_owners_do_not_hide_a_runnable_session(
    store: PostgresStore, postgres_url: str, tool: str
) -> None:
    """Also if each of them lacks a different tool."""
    await fill(postgres_url, WAITING, OWNERS, later(), tool)
    keys = [await able(store, owner) for owner in ("owner 0500", "owner 0999", "aaa", "zzz")]
    found = [key for _ in keys for key in await claimed(store, limit=1)]
    assert sorted(found) == sorted(keys)


async def test_owners_without_a_slot_do_not_hide_a_runnable_session(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url, node="here", limits=TurnLimits(running=1))
    await fill(postgres_url, RUNNING, OWNERS, store.process)
    await fill(postgres_url, WAITING, OWNERS, later(), "")
    keys = [await able(store, owner) for owner in ("aaa", "owner 0500b", "zzz")]
    found = [key for _ in keys for key in await claimed(store, limit=1)]
    assert sorted(found) == sorted(keys)
    assert await claimed(store, limit=1) == []
    await store.close()


async def test_oldest_waiting_session_is_found_among_very_many_owners(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url, node="here", limits=TurnLimits(running=1))
    await fill(postgres_url, WAITING, OWNERS, later(), "")
    assert [await store.oldest_unclaimed() for _ in range(3)] == [later() + 1] * 3
    await fill(postgres_url, "UPDATE holdfast.session SET runnable_since = 7 WHERE owner = 'owner 0900'")
    assert [await store.oldest_unclaimed() for _ in range(3)] == [7] * 3
    await store.close()


async def test_session_locked_by_another_process_does_not_take_up_a_place(
    store: PostgresStore, postgres_url: str
) -> None:
    """Its owner is the first in line, and has nothing else to run; the place goes to the next owner."""
    await able(store, "ann")
    other = await able(store, "bob")
    db = await asyncpg.connect(postgres_url)
    async with db.transaction():
        await db.execute("SELECT 1 FROM holdfast.session WHERE owner = 'ann' FOR UPDATE")
        assert await claimed(store, limit=1) == [other]
    await db.close()
