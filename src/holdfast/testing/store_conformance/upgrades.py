"""Two releases at one database: items that only the newer one knows are kept for it, and harm nothing."""

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
    """A session whose inbox has one item, put by a process of the next release."""
    await create(store, host=host)
    await insert_item(KEY, "future", sequence=1, kind="from_the_future", payload=PAYLOAD)


class UpgradeConformance:
    """Two releases at one database: items that only the newer one knows are kept for it, and harm nothing."""

    async def test_an_item_of_the_next_release_is_read_as_it_is(self, store: Store, insert_item: InsertItem) -> None:
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

    async def test_an_item_of_the_next_release_can_be_claimed_with_its_session(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        (claim,) = await store.claim(limit=MANY, fold_version=FOLD)
        assert claim.loaded is not None
        assert [item.item for item in claim.loaded.inbox] == [UNKNOWN]

    async def test_messages_are_put_changed_and_promoted_around_an_item_of_the_next_release(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        for name in ("m1", "m2", "m3"):
            assert not accepted(await send(store, name)).duplicate
        assert await store.edit_item(KEY, "m1", text="other words")
        assert not await store.edit_item(KEY, "future", text="other words")
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

    async def test_a_stop_leaves_a_message_in_the_queue_that_it_could_not_give_back(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        """Its shape is of the next release: nobody here could tell its sender what it said."""
        await create(store)
        await insert_item(KEY, "future", sequence=1, kind="message", payload=MESSAGE)
        await send(store, "m")
        assert keys_of(accepted(await stop(store)).removed) == ["m"]
        (left,) = await store.waiting_items(KEY)
        assert (left.key, left.state) == ("future", "accepted")
        assert isinstance(left.item, UnknownItem)

    async def test_a_session_left_for_the_next_release_is_not_claimed_again_by_this_one(
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

    async def test_a_session_left_for_the_next_release_is_claimed_by_its_first_process(
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

    async def test_a_session_left_for_the_next_release_keeps_its_host(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item, host="here")
        assert await store.release(await hold(store), seen_tail=1, how="for_newer")
        elsewhere = await open_store(node="there", inbox_version=INBOX_VERSION + 1)
        assert await elsewhere.claim(limit=MANY) == []
        assert await store.claim(limit=MANY) == []
        here = await open_store(inbox_version=INBOX_VERSION + 1)
        assert len(await here.claim(limit=MANY)) == 1

    async def test_a_session_left_for_the_next_release_is_left_alone_by_its_processes_that_can_not_run_it(
        self, store: Store, open_store: OpenStore, insert_item: InsertItem
    ) -> None:
        """Else this release, which can run it, would leave it again at once, and so on for ever."""
        able = await open_store(tools=frozenset({"tool"}))
        await create(store, tools=("tool",))
        await insert_item(KEY, "future", sequence=1, kind="from_the_future", payload=PAYLOAD)
        assert await able.release(await hold(able), seen_tail=1, how="for_newer")
        newer = await open_store(inbox_version=INBOX_VERSION + 1)
        assert await newer.claim(limit=MANY) == []
        assert await able.claim(limit=MANY) == []
        newer_and_able = await open_store(tools=frozenset({"tool"}), inbox_version=INBOX_VERSION + 1)
        assert len(await newer_and_able.claim(limit=MANY)) == 1

    async def test_a_session_left_for_the_next_release_takes_messages_here(
        self, store: Store, insert_item: InsertItem
    ) -> None:
        await with_future_item(store, insert_item)
        assert await store.release(await hold(store), seen_tail=1, how="for_newer")
        await send(store, "m")
        lease = await hold(store)
        assert not await store.release(lease, seen_tail=1, how="for_newer")
        assert await store.release(lease, seen_tail=2, how="for_newer")
        assert await store.claim(limit=MANY) == []
