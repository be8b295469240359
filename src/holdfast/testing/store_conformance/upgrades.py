"""Two releases on one database: the older one keeps items that only the newer one knows, and works around them."""

import msgspec

from holdfast.events.inbox import INBOX_VERSION, UnknownItem
from holdfast.store.store import Committed, Cursor, Promotion, Refused, Store, Unit
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    InsertItem,
    OpenStore,
    accepted,
    create,
    hold,
    keys_of,
    send,
    stop,
)

FOLD = 1
PAYLOAD = b'{"kind":"from_the_future","words":["kept","as they are"]}'
MESSAGE = b'{"kind":"message","message_id":"future","said":["words","of another shape"]}'
UNKNOWN = UnknownItem(kind="from_the_future", payload=msgspec.Raw(PAYLOAD))


async def with_future_item(store: Store, insert_item: InsertItem, *, host: str | None = None) -> None:
    """Create a session whose inbox has one item of a newer release."""
    await create(store, host=host)
    await insert_item(KEY, "future", sequence=1, kind="from_the_future", payload=PAYLOAD)


class UpgradeConformance:
    """Two releases on one database: the older one keeps items that only the newer one knows, and works around them."""

    async def test_item_of_a_newer_release_is_read_unchanged(self, store: Store, insert_item: InsertItem) -> None:
        await with_future_item(store, insert_item)
        (item,) = await store.waiting_items(KEY)
        assert (item.key, item.state, item.item) == ("future", "accepted", UNKNOWN)
        assert await store.receipt(KEY, "future") == item
        caught = await store.catch_up(KEY, Cursor(), limit=MANY)
        assert caught is not None
        assert caught.inbox == (item,)
        loaded = await store.load(KEY, fold_version=FOLD)
        assert loaded is not None
        assert loaded.inbox == (item,)

    async def test_session_with_an_item_of_a_newer_release_can_be_claimed(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        (claim,) = await store.claim(limit=MANY, fold_version=FOLD)
        assert claim.loaded is not None
        assert [item.item for item in claim.loaded.inbox] == [UNKNOWN]

    async def test_queue_works_around_an_item_of_a_newer_release(self, store: Store, insert_item: InsertItem) -> None:
        await with_future_item(store, insert_item)
        for name in ("m1", "m2", "m3"):
            assert not accepted(await send(store, name)).duplicate
        assert await store.edit_item(KEY, "m1", text="other words") is None
        assert await store.edit_item(KEY, "future", text="other words") is not None
        assert await store.remove_item(KEY, "m2")
        assert not await store.remove_item(KEY, "future")
        assert await store.reorder_items(KEY, ["m3", "m1"])
        assert isinstance(await send(store, "future"), Refused)
        lease = await hold(store)
        waiting = await store.waiting_items(KEY)
        assert keys_of(waiting) == ["future", "m3", "m1"]
        promoted = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(waiting[1].sequence, "idle"),))
        assert isinstance(await store.commit(promoted), Committed)
        removed = accepted(await stop(store)).removed
        assert keys_of(removed) == ["m1"]
        (left,) = await store.waiting_items(KEY)
        assert (left.state, left.item) == ("accepted", UNKNOWN)

    async def test_stop_keeps_a_queued_message_that_this_release_cannot_read(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        """The message has the shape of a newer release: this release could not return its text to the sender."""
        await create(store)
        await insert_item(KEY, "future", sequence=1, kind="message", payload=MESSAGE)
        await send(store, "m")
        assert keys_of(accepted(await stop(store)).removed) == ["m"]
        (left,) = await store.waiting_items(KEY)
        assert (left.key, left.state) == ("future", "accepted")
        assert isinstance(left.item, UnknownItem)

    async def test_session_left_for_a_newer_release_is_not_claimed_again_by_this_one(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        lease = await hold(store)
        assert await store.release(lease, seen_tail=1, how="for_newer")
        assert await store.claim(limit=MANY) == []
        assert await (await open_store()).claim(limit=MANY) == []
        row = await store.row(KEY)
        assert row is not None
        assert row.status == "idle"
        assert (await store.turns(KEY.owner)).in_flight == 0

    async def test_session_left_for_a_newer_release_is_claimed_by_its_first_process(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        assert await store.release(await hold(store), seen_tail=1, how="for_newer")
        newer = await open_store(inbox_version=INBOX_VERSION + 1)
        (claim,) = await newer.claim(limit=MANY)
        assert claim.lease.key == KEY
        assert claim.eligible
        assert await newer.release(claim.lease, seen_tail=1, how="done")
        assert await newer.claim(limit=MANY) == []

    async def test_session_left_for_a_newer_release_keeps_its_host(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item, host="here")
        assert await store.release(await hold(store), seen_tail=1, how="for_newer")
        elsewhere = await open_store(node="there", inbox_version=INBOX_VERSION + 1)
        assert await elsewhere.claim(limit=MANY) == []
        assert await store.claim(limit=MANY) == []
        here = await open_store(inbox_version=INBOX_VERSION + 1)
        assert len(await here.claim(limit=MANY)) == 1

    async def test_session_left_for_a_newer_release_is_claimed_only_by_an_eligible_process(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        """Otherwise this release, which is eligible, would claim and leave the session again for ever."""
        able = await open_store(tools=frozenset({"tool"}))
        await create(store, tools=("tool",))
        await insert_item(KEY, "future", sequence=1, kind="from_the_future", payload=PAYLOAD)
        assert await able.release(await hold(able), seen_tail=1, how="for_newer")
        newer = await open_store(inbox_version=INBOX_VERSION + 1)
        assert await newer.claim(limit=MANY) == []
        assert await able.claim(limit=MANY) == []
        newer_and_able = await open_store(tools=frozenset({"tool"}), inbox_version=INBOX_VERSION + 1)
        assert len(await newer_and_able.claim(limit=MANY)) == 1

    async def test_session_left_for_a_newer_release_still_accepts_messages(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        assert await store.release(await hold(store), seen_tail=1, how="for_newer")
        await send(store, "m")
        lease = await hold(store)
        assert not await store.release(lease, seen_tail=1, how="for_newer")
        assert await store.release(lease, seen_tail=2, how="for_newer")
        assert await store.claim(limit=MANY) == []
