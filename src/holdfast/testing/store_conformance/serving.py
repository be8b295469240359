"""What a server keeps in the store, and what it asks of it about all sessions."""

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store import crash_points
from holdfast.store.keys import KeyRow
from holdfast.store.store import Store
from holdfast.testing.store_conformance.words import KEY, OpenStore, asking, create, hold, send

LAPTOP = KeyRow(key_id="one", name="laptop", owner=Owner("ada"), role="user", digest=b"\x00digest\xff", created_at=1)
PHONE = KeyRow(key_id="two", name="phone", owner=Owner("bob"), role="admin", digest=b"another", created_at=2)


class ServingConformance:
    async def test_keys_are_kept_for_every_process(self, open_store: OpenStore) -> None:
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

    async def test_a_key_is_revoked_once_and_stays_to_be_seen(self, store: Store) -> None:
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

    async def test_a_database_is_known_by_one_name_to_all_its_processes(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        name = await here.identity()
        assert name == await there.identity() == await here.identity()
        assert name.isalnum()
        assert len(name) == 32

    async def test_a_glance_counts_one_owner_s_sessions_and_puts_first_who_waits(self, store: Store) -> None:
        await asking(store)
        queued, idle, foreign = (Key(KEY.owner, SessionId(name)) for name in ("queued", "idle", "foreign"))
        await create(store, queued)
        await send(store, "m", key=queued)
        await create(store, idle)
        await create(store, Key(Owner("somebody else"), foreign.session))
        found = await store.glance(KEY.owner, since=0, limit=10)
        assert (found.waiting + found.running, found.queued, found.idle, found.idle_lately) == (1, 1, 1, 1)
        assert [row.key for row in found.first] == [KEY, queued, idle]
        assert (await store.glance(KEY.owner, since=1 << 62, limit=1)).idle_lately == 0
        assert len((await store.glance(KEY.owner, since=0, limit=1)).first) == 1
        assert (await store.glance(Owner("nobody"), since=0, limit=10)).first == ()

    async def test_the_oldest_session_that_nobody_runs_is_known(self, store: Store) -> None:
        assert await store.oldest_unclaimed() is None
        await create(store)
        assert await store.oldest_unclaimed() is None
        await send(store, "m")
        row = await store.row(KEY)
        assert row is not None
        assert await store.oldest_unclaimed() == row.updated_at
        await hold(store)
        assert await store.oldest_unclaimed() is None
