"""Who may run a session that a client entrusted something to."""

from holdfast.store.store import Store
from holdfast.testing.store_conformance.words import KEY, MANY, OTHER, OpenStore, create, running, send, stop

SEALED = b"\x00sealed\xff"


async def claimed(store: Store) -> bool:
    """Whether this process takes the session to run it; it is given back at once."""
    found = [claim for claim in await store.claim(limit=MANY) if claim.eligible]
    for claim in found:
        await store.release(claim.lease, seen_tail=-1, how="handed_over")
    return bool(found)


class SecretConformance:
    async def test_a_session_is_run_by_the_process_that_has_its_secrets(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        assert await here.keep_secret(KEY, keeper=here.process)
        await send(here, "m")
        assert not await claimed(there)
        assert await claimed(here)

    async def test_what_was_given_last_counts(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await send(here, "m")
        await here.keep_secret(KEY, keeper=here.process)
        await there.keep_secret(KEY, keeper=there.process)
        assert not await claimed(here)
        assert await claimed(there)

    async def test_whoever_has_the_key_may_run_what_is_sealed_under_it(self, open_store: OpenStore) -> None:
        giver = await open_store(secret_key="key:one")
        same, another, without = [await open_store(secret_key=name) for name in ("key:one", "key:two", "")]
        await create(giver)
        await send(giver, "m")
        await giver.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        assert not await claimed(another)
        assert not await claimed(without)
        assert await claimed(same)
        assert await same.secret(KEY) == ("key:one", SEALED)
        assert await same.secret(OTHER) is None

    async def test_a_secret_that_nobody_has_leaves_the_session_to_nobody(self, store: Store) -> None:
        await create(store)
        await send(store, "m")
        await store.lose_secret(KEY, keeper=store.process)
        assert not await claimed(store)
        assert await store.secret(KEY) == ("", b"")
        await store.keep_secret(KEY, keeper=store.process)
        assert await claimed(store)
        await store.lose_secret(KEY, keeper=store.process)
        assert not await claimed(store)

    async def test_a_secret_that_was_given_meanwhile_is_not_lost(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store(secret_key="key:one")
        await create(here)
        await send(here, "m")
        await there.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        await here.lose_secret(KEY, keeper=here.process)
        await there.lose_secret(KEY, keeper="key:one", sealed=b"what was sealed before")
        assert await there.secret(KEY) == ("key:one", SEALED)
        assert await claimed(there)
        await there.lose_secret(KEY, keeper="key:one", sealed=SEALED)
        assert await there.secret(KEY) == ("", SEALED)
        assert not await claimed(there)

    async def test_a_session_that_needs_no_secret_any_more_is_anybodys(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await send(here, "m")
        await here.keep_secret(KEY, keeper=here.process)
        await here.drop_secret(KEY)
        await here.drop_secret(KEY)
        assert await there.secret(KEY) is None
        assert await claimed(there)

    async def test_a_turn_is_ended_by_anyone_whoever_has_its_secrets(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        lease = await running(here)
        await here.keep_secret(KEY, keeper=here.process)
        await here.release(lease, seen_tail=-1, how="handed_over")
        assert await there.claim(limit=MANY) == []
        await stop(here)
        (claim,) = await there.claim(limit=MANY)
        assert not claim.eligible

    async def test_a_secret_goes_with_its_session_and_is_kept_for_no_other(self, store: Store) -> None:
        assert not await store.keep_secret(KEY, keeper=store.process)
        await create(store)
        await store.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        await store.delete(KEY)
        assert await store.secret(KEY) is None
        assert not await store.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        await store.lose_secret(KEY, keeper="")
        assert await store.secret(KEY) is None
