"""Loading claimed sessions: bounded in bytes, after the claim is counted, and each session separately."""

from collections.abc import Callable, Iterable

import pytest

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import Fence, Key, Position
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.store.log_pages import PAGE_BYTES, SMALL_BYTES, pages, whole_log
from holdfast.store.store import Claim, Cursor, Lease, Snapshot, Store, Unit
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    TURN,
    OpenStore,
    create,
    event,
    hold,
    info,
    running,
    send,
)

FOLD = 1
PILL = "an event that cannot be decoded"

Decode = Callable[[str, int, bytes], Body]


class LoadConformance:
    """Loading claimed sessions, pages of the log, and snapshots."""

    async def test_log_page_is_bounded_in_bytes_and_has_at_least_one_event(self, store: Store) -> None:
        await create(store)
        await append(store, KEY, "a" * 1000, "b" * 1000, "c" * 5000, "d" * 1000)
        page = await store.events_after(KEY, Position(1), limit=MANY, max_bytes=3000)
        assert [each.position for each in page] == [2, 3]
        page = await store.events_after(KEY, Position(3), limit=MANY, max_bytes=3000)
        assert [each.position for each in page] == [4]
        page = await store.events_after(KEY, Position(1), limit=1, max_bytes=3000)
        assert [each.position for each in page] == [2]
        assert await store.events_after(KEY, Position(5), limit=MANY, max_bytes=3000) == ()

    async def test_load_reads_one_page_and_the_rest_follows_page_by_page(self, store: Store) -> None:
        await create(store)
        for number in range(5):
            await append(store, KEY, str(number) * (PAGE_BYTES // 3))
        loaded = await store.load(KEY, fold_version=FOLD)
        assert loaded is not None
        assert loaded.read_up_to < loaded.row.head == 6
        found = [page async for page in pages(store, loaded)]
        assert all(size(page) <= PAGE_BYTES for page in found)
        assert [each.position for page in found for each in page] == [1, 2, 3, 4, 5, 6]
        whole = await whole_log(store, KEY)
        assert whole is not None
        assert [each.position for each in whole[1]] == [1, 2, 3, 4, 5, 6]

    async def test_long_log_is_read_to_the_head_at_load_time(self, store: Store) -> None:
        await create(store)
        for _ in range(3):
            await append(store, KEY, *map(str, range(700)))
        loaded = await store.load(KEY, fold_version=FOLD)
        await append(store, KEY, "later")
        assert loaded is not None
        assert [each.position async for page in pages(store, loaded) for each in page] == list(range(1, 2102))

    async def test_claim_loads_a_small_session_and_leaves_a_large_one_to_its_holder(self, store: Store) -> None:
        await create(store)
        await create(store, OTHER)
        await append(store, OTHER, "x" * SMALL_BYTES)
        found = await claimed(store)
        assert found[KEY].loaded is not None
        assert found[OTHER].loaded is None
        assert [claim.claims_without_progress for claim in found.values()] == [1, 1]

    async def test_claim_leaves_a_session_with_a_large_queued_message_to_its_holder(self, store: Store) -> None:
        await create(store)
        await send(store, "m", text="x" * SMALL_BYTES)
        (claim,) = await store.claim(limit=MANY, fold_version=FOLD)
        assert claim.loaded is None

    async def test_unloadable_session_is_claimed_and_counted_and_fails_alone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(store)
        await create(store, OTHER)
        await append(store, OTHER, PILL)
        monkeypatch.setattr(codec, "decode", choking(codec.decode))
        for count in (1, 2):
            found = await claimed(store)
            assert [claim.claims_without_progress for claim in found.values()] == [count, count]
            assert await store.load(KEY, fold_version=FOLD) is not None
            for claim in found.values():
                assert await store.release(claim.lease, seen_tail=-1, how="failed")

    async def test_only_the_holder_keeps_a_snapshot_and_never_an_older_one(
        self, store: Store, open_store: OpenStore
    ) -> None:
        lease = await running(store)
        other = await open_store()
        assert await store.keep_snapshot(lease, Snapshot(FOLD, Position(2), b"two"))
        assert not await store.keep_snapshot(lease, Snapshot(FOLD, Position(1), b"one"))
        assert not await store.keep_snapshot(lease, Snapshot(FOLD, Position(4), b"beyond the log"))
        assert not await other.keep_snapshot(lease, Snapshot(FOLD, Position(3), b"of another process"))
        stale = Lease(KEY, Fence(lease.fence - 1))
        assert not await store.keep_snapshot(stale, Snapshot(FOLD, Position(3), b"of another claim"))
        loaded = await store.load(KEY, fold_version=FOLD)
        assert loaded is not None
        assert loaded.snapshot == Snapshot(FOLD, Position(2), b"two")
        assert [each.position for each in loaded.events] == [3]
        assert await store.keep_snapshot(lease, Snapshot(FOLD + 1, Position(1), b"another fold"))
        assert await store.release(lease, seen_tail=1, how="done")
        assert not await store.keep_snapshot(lease, Snapshot(FOLD + 1, Position(3), b"too late"))

    async def test_catch_up_page_is_bounded_in_bytes_and_says_that_there_is_more(self, store: Store) -> None:
        await create(store)
        for number in range(3):
            await append(store, KEY, str(number) * (PAGE_BYTES // 2))
        caught = await store.catch_up(KEY, Cursor(), limit=MANY)
        assert caught is not None
        assert caught.more
        assert size(caught.events) <= PAGE_BYTES
        caught = await store.catch_up(KEY, Cursor(caught.events[-1].position), limit=MANY)
        assert caught is not None
        assert caught.events

    async def test_only_progress_resets_the_count_of_claims(self, store: Store) -> None:
        lease = await running(store)
        for count in (2, 3):
            await store.commit(Unit(key=KEY, fence=lease.fence, events=(info("no progress"),), status="running"))
            assert await store.release(lease, seen_tail=-1, how="failed")
            (claim,) = await store.claim(limit=MANY)
            assert claim.claims_without_progress == count
            lease = claim.lease
        await store.commit(Unit(key=KEY, fence=lease.fence, makes_progress=True))
        assert await store.release(lease, seen_tail=-1, how="failed")
        (claim,) = await store.claim(limit=MANY)
        assert claim.claims_without_progress == 1

    async def test_the_start_of_the_latest_turn_is_found(self, store: Store) -> None:
        await create(store)
        assert await store.turn_start(KEY) is None
        await send(store, "m")
        lease = await hold(store)
        begins, ends = event(TurnStarted(turn_id=TURN)), event(TurnEnded(turn_id=TURN, reason="completed"))
        for _ in range(2):
            await store.commit(Unit(key=KEY, fence=lease.fence, events=(begins, info("a"), ends)))
        await store.commit(Unit(key=KEY, fence=lease.fence, events=tuple(info(str(n)) for n in range(200))))
        assert await store.turn_start(KEY) == 5
        assert await store.turn_start(OTHER) is None


def choking(decode: Decode) -> Decode:
    """A decoder that runs out of memory at one event."""

    def chokes(event_type: str, version: int, data: bytes) -> Body:
        if PILL.encode() in data:
            raise MemoryError
        return decode(event_type, version, data)

    return chokes


async def append(store: Store, key: Key, *texts: str) -> None:
    await store.commit(Unit(key=key, fence=None, events=tuple(map(info, texts))))


async def claimed(store: Store) -> dict[Key, Claim]:
    """Send both sessions a message and claim them in one call."""
    for key in (KEY, OTHER):
        await send(store, "m", key=key)
    found = {claim.lease.key: claim for claim in await store.claim(limit=MANY, fold_version=FOLD)}
    assert set(found) == {KEY, OTHER}
    return found


def size(page: Iterable[Event]) -> int:
    return sum(len(codec.encode(each.body)[2]) for each in page)
