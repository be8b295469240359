"""Sessions with secrets: only a process that has the secrets may run them."""

from holdfast.store.store import Store
from holdfast.testing.store_conformance.words import KEY, MANY, OTHER, OpenStore, create, running, send, stop

SEALED = b"\x00sealed\xff"


async def claimed(store: Store) -> bool:
    """Whether this process can claim the session to run it; the claim is released at once."""
    claims = [claim for claim in await store.claim(limit=MANY) if claim.eligible]
    for claim in claims:
        await store.release(claim.lease, seen_tail=-1, how="handed_over")
    return bool(claims)


class SecretConformance:
    async def test_only_the_process_with_the_secrets_runs_the_session(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        assert await here.keep_secret(KEY, keeper=here.process)
        await send(here, "m")
        assert not await claimed(there)
        assert await claimed(here)

    async def test_newest_keeper_of_the_secrets_runs_the_session(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await send(here, "m")
        await here.keep_secret(KEY, keeper=here.process)
        await there.keep_secret(KEY, keeper=there.process)
        assert not await claimed(here)
        assert await claimed(there)

    async def test_any_process_with_the_key_may_run_the_session(self, open_store: OpenStore) -> None:
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

    async def test_session_with_lost_secrets_is_not_claimed(self, store: Store) -> None:
        await create(store)
        await send(store, "m")
        await store.lose_secret(KEY, keeper=store.process)
        assert not await claimed(store)
        assert await store.secret(KEY) == ("", b"")
        await store.keep_secret(KEY, keeper=store.process)
        assert await claimed(store)
        await store.lose_secret(KEY, keeper=store.process)
        assert not await claimed(store)

    async def test_secret_given_again_meanwhile_is_not_lost(self, open_store: OpenStore) -> None:
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

    async def test_session_without_secrets_may_run_anywhere(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await send(here, "m")
        await here.keep_secret(KEY, keeper=here.process)
        await here.drop_secret(KEY)
        await here.drop_secret(KEY)
        assert await there.secret(KEY) is None
        assert await claimed(there)

    async def test_any_process_may_end_a_turn_without_its_secrets(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        lease = await running(here)
        await here.keep_secret(KEY, keeper=here.process)
        await here.release(lease, seen_tail=-1, how="handed_over")
        assert await there.claim(limit=MANY) == []
        await stop(here)
        (claim,) = await there.claim(limit=MANY)
        assert not claim.eligible

    async def test_secret_is_deleted_with_its_session(self, store: Store) -> None:
        assert not await store.keep_secret(KEY, keeper=store.process)
        await create(store)
        await store.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        await store.delete(KEY)
        assert await store.secret(KEY) is None
        assert not await store.keep_secret(KEY, keeper="key:one", sealed=SEALED)
        await store.lose_secret(KEY, keeper="")
        assert await store.secret(KEY) is None
