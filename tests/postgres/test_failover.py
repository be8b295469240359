"""A standby takes over. Writes that the primary had acknowledged may be lost, and the holder of a session is then ahead
of the log: so every lease is over, whatever the rows say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.store.errors import StoreError
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Committed, FenceMissed, Lease, Unit
from holdfast.testing.store_conformance.words import KEY, MANY, create, hold, said, send
from proof.chaos.relay import Relay
from proof.chaos.replicas import Replicas

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def replicated() -> AsyncIterator[tuple[Replicas, Relay, PostgresStore]]:
    """A store that always reaches the current primary."""
    replicas = Replicas()
    try:
        replicas.start()
        await replicas.add_standby()
        async with Relay(replicas.primary.socket) as relay:
            store = await PostgresStore.open(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres", node="here")
            yield replicas, relay, store
            await store.close()
    finally:
        replicas.remove()


async def until_answered(store: PostgresStore, lease: Lease, text: str) -> object:
    """The outcome of a write, once the database can be reached again."""
    while True:
        try:
            return await store.commit(Unit(key=KEY, fence=lease.fence, events=(said(text),)))
        except StoreError:
            await asyncio.sleep(0.05)


async def head_of(store: PostgresStore) -> int:
    row = await store.row(KEY)
    assert row is not None
    return row.head


@pytest.mark.parametrize("loses", [False, True], ids=["nothing is lost", "the last writes are lost"])
async def test_holder_from_before_a_failover_cannot_write_and_its_session_is_claimed_again(loses: bool) -> None:
    async with asyncio.timeout(120), replicated() as (replicas, relay, store):
        await create(store)
        await send(store, "m")
        lease = await hold(store)
        failing = asyncio.create_task(replicas.fail_over(loses=loses))
        written = 0
        while not failing.done():
            try:
                assert isinstance(
                    await store.commit(Unit(key=KEY, fence=lease.fence, events=(said(str(written)),))), Committed
                )
                written += 1
            except StoreError:
                await asyncio.sleep(0.05)
        window = await failing
        relay.lead_to(replicas.primary.socket)
        assert isinstance(await until_answered(store, lease, "late"), FenceMissed)
        kept = await head_of(store)
        assert kept < 1 + written if window is not None else kept >= 1 + written
        assert not await store.release(lease, seen_tail=1, how="done"), (
            "a holder from before the failover can't release the session"
        )
        assert await store.claim(limit=MANY) == [], (
            "no claim before the process has started over, as a new process would"
        )
        assert not await store.renew(ttl_seconds=60)
        (claim,) = await store.claim(limit=MANY)
        assert claim.lease.fence != lease.fence
        assert isinstance(await until_answered(store, claim.lease, "anew"), Committed)
        assert await head_of(store) == kept + 1


async def test_fence_of_a_claim_that_a_failover_lost_is_not_used_again() -> None:
    """The process starts over under the same token: only the fence distinguishes the two claims."""
    async with asyncio.timeout(120), replicated() as (replicas, relay, store):
        await create(store)
        await send(store, "m")
        given = [await hold(store)]
        failing = asyncio.create_task(replicas.fail_over(loses=True))
        while not failing.done():
            try:
                await store.release(given[-1], seen_tail=-1, how="handed_over")
                given += [claim.lease for claim in await store.claim(limit=MANY)]
            except StoreError:
                await asyncio.sleep(0.05)
        await failing
        relay.lead_to(replicas.primary.socket)
        assert isinstance(await until_answered(store, given[-1], "late"), FenceMissed)
        assert not await store.renew(ttl_seconds=60)
        (claim,) = await store.claim(limit=MANY)
        assert len(given) > 1
        assert claim.lease.fence not in {lease.fence for lease in given}
        for lost in given:
            late = Unit(key=KEY, fence=lost.fence, events=(said("late"),))
            assert isinstance(await store.commit(late), FenceMissed)
        assert isinstance(await until_answered(store, claim.lease, "anew"), Committed)
