"""API keys in the store: every process finds them, and a revoked key is no longer valid."""

from holdfast.events.ids import Owner
from holdfast.store import crash_points
from holdfast.store.keys import KeyRow
from holdfast.store.store import Store
from holdfast.testing.store_conformance.words import OpenStore

LAPTOP = KeyRow(key_id="one", name="laptop", owner=Owner("ada"), role="user", digest=b"\x00digest\xff", created_at=1)
PHONE = KeyRow(key_id="two", name="phone", owner=Owner("bob"), role="admin", digest=b"another", created_at=2)


class KeyConformance:
    async def test_keys_are_shared_by_all_processes(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await here.add_key(PHONE)
        await here.add_key(LAPTOP)
        assert await there.keys() == (LAPTOP, PHONE)
        assert await there.keys("two") == (PHONE,)
        assert await there.keys("three") == ()

    async def test_a_key_is_valid_with_its_digest_until_it_is_revoked(self, store: Store) -> None:
        await store.add_key(LAPTOP)
        await store.add_key(PHONE)
        assert await store.valid_key("one", LAPTOP.digest) == LAPTOP
        assert await store.valid_key("one", PHONE.digest) is None
        assert await store.valid_key("three", LAPTOP.digest) is None
        await store.revoke_key("one")
        assert await store.valid_key("one", LAPTOP.digest) is None
        assert await store.valid_key("two", PHONE.digest) == PHONE

    async def test_key_is_revoked_once_and_stays_listed(self, store: Store) -> None:
        await store.add_key(LAPTOP)
        assert await store.revoke_key("one")
        assert not await store.revoke_key("one")
        assert not await store.revoke_key("two")
        (found,) = await store.keys()
        assert found.revoked_at is not None

    async def test_keys_pass_their_crash_points(self, store: Store) -> None:
        reached: list[str] = []
        crash_points.install(reached.append)
        try:
            await store.add_key(LAPTOP)
            await store.revoke_key("one")
        finally:
            crash_points.install(None)
        assert reached == ["add_key:key:before", "add_key:key:after", "revoke_key:key:before", "revoke_key:key:after"]
