"""The log: units, positions and fences."""

import asyncio

from holdfast.events.ids import (
    Fence,
    Owner,
    Position,
)
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.store.store import (
    Committed,
    Cursor,
    FenceMissed,
    Key,
    Promotion,
    Rejected,
    Snapshot,
    Store,
    Unit,
)
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    TURN,
    OpenStore,
    committed,
    create,
    event,
    hold,
    info,
    ledger,
    refused,
    request,
    running,
    said,
    segment,
    send,
)


class LogConformance:
    """The log: units, positions and fences."""

    async def test_positions_are_dense_and_in_order(self, store: Store) -> None:
        assert await create(store) == Committed(Position(1), 0)
        both = (info("a"), info("b"))
        assert await store.commit(Unit(key=KEY, fence=None, events=both)) == Committed(Position(3), 0)
        events = await store.events_after(KEY, Position(0), limit=MANY)
        assert [found.position for found in events] == [1, 2, 3]
        assert [found.body for found in events[1:]] == [found.body for found in both]

    async def test_concurrent_appends_leave_no_gap_and_no_duplicate(self, store: Store) -> None:
        await create(store)
        await create(store, OTHER)
        units = [Unit(key=key, fence=None, events=(info(str(n)),)) for n in range(100) for key in (KEY, OTHER)]
        outcomes = await asyncio.gather(*map(store.commit, units))
        assert sorted(committed(outcome).head for outcome in outcomes[::2]) == list(range(2, 102))
        for key in (KEY, OTHER):
            events = await store.events_after(key, Position(0), limit=MANY)
            assert [found.position for found in events] == list(range(1, 102))

    async def test_long_log_can_be_read_in_pages_from_any_position(self, store: Store) -> None:
        await create(store)
        await store.commit(Unit(key=KEY, fence=None, events=tuple(info(str(n)) for n in range(2, 300))))
        for after, limit in ((0, 10), (62, 3), (63, 1), (64, 64), (250, 100), (298, 5), (299, 5), (0, MANY)):
            events = await store.events_after(KEY, Position(after), limit=limit)
            assert [found.position for found in events] == list(range(after + 1, min(after + limit, 299) + 1))

    async def test_only_records_may_be_written_without_a_lease(self, store: Store) -> None:
        await create(store)
        for unit in (
            Unit(key=KEY, fence=None, events=(info("fine"), event(TurnStarted(turn_id=TURN)))),
            Unit(key=KEY, fence=None, opens=(request(),)),
            Unit(key=KEY, fence=None, segments=(segment("x", offset=0),)),
            Unit(key=KEY, fence=None, status="running", turn_id=TURN),
        ):
            assert isinstance(await store.commit(unit), Rejected)
        row = await store.row(KEY)
        assert row is not None
        assert (row.head, row.status, row.open_requests) == (1, "idle", 0)

    async def test_a_session_is_created_once(self, store: Store) -> None:
        await create(store)
        assert await create(store) == Rejected("exists")
        assert len(await store.events_after(KEY, Position(0), limit=MANY)) == 1

    async def test_a_record_for_a_missing_session_is_rejected(self, store: Store) -> None:
        assert await store.commit(Unit(key=KEY, fence=None, events=(info("x"),))) == Rejected("session_not_found")

    async def test_the_session_of_another_owner_is_missing(self, store: Store) -> None:
        await create(store)
        stranger = Key(Owner("bob"), KEY.session)
        assert await store.row(stranger) is None
        assert await store.load(stranger, fold_version=1) is None
        assert await store.catch_up(stranger, Cursor(), limit=MANY) is None
        assert await store.events_after(stranger, Position(0), limit=MANY) == ()
        assert refused(await send(store, "m", key=stranger)) == "session_not_found"
        assert not await store.delete(stranger)
        assert committed(await create(store, stranger)).head == 1

    async def test_a_fenced_unit_writes_all_of_its_parts(self, store: Store) -> None:
        lease = await running(store)
        unit = Unit(
            key=KEY,
            fence=lease.fence,
            events=(said("more"),),
            opens=(request(),),
            segments=(segment("Hel", offset=0), segment("lo", offset=3)),
            ledger=(ledger("answer"),),
            status="waiting",
            turn_id=TURN,
            title="A title",
        )
        assert await store.keep_snapshot(lease, Snapshot(1, Position(3), b"folded"))
        assert await store.commit(unit) == Committed(Position(4), 1)
        loaded = await store.load(KEY, fold_version=1)
        assert loaded is not None
        assert loaded.snapshot == Snapshot(1, Position(3), b"folded")
        assert [found.position for found in loaded.events] == [4]
        assert loaded.segments == unit.segments
        assert (loaded.row.status, loaded.row.turn_id, loaded.row.title) == ("waiting", TURN, "A title")
        assert (loaded.row.open_requests, loaded.row.held_by) == (1, store.process)
        assert await store.requests(KEY) == (request(),)
        assert await store.ledger(KEY.owner) == (ledger("answer"),)

    async def test_a_unit_without_a_status_leaves_the_row_as_it_is(self, store: Store) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.turn_id) == ("running", TURN)

    async def test_end_of_a_turn_clears_the_rows_turn(self, store: Store) -> None:
        lease = await running(store)
        ended = event(TurnEnded(turn_id=TURN, reason="completed"))
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(ended,), status="idle"))
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.turn_id) == ("idle", None)

    async def test_a_snapshot_of_another_fold_is_not_used(self, store: Store) -> None:
        lease = await running(store)
        assert await store.keep_snapshot(lease, Snapshot(1, Position(3), b"old"))
        loaded = await store.load(KEY, fold_version=2)
        assert loaded is not None
        assert loaded.snapshot is None
        assert len(loaded.events) == 3

    async def test_stale_fence_cannot_write(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        await store.close()
        other = await open_store()
        again = await hold(other)
        assert again.fence > lease.fence
        assert await other.commit(Unit(key=KEY, fence=lease.fence, events=(said("late"),))) == FenceMissed()
        assert committed(await other.commit(Unit(key=KEY, fence=again.fence, events=(said("now"),)))).head == 4

    async def test_released_lease_cannot_write(self, store: Store) -> None:
        lease = await running(store)
        assert await store.release(lease, seen_tail=1, how="done")
        assert await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("late"),))) == FenceMissed()

    async def test_another_process_cannot_write_under_a_lease_it_does_not_hold(
        self, store: Store, open_store: OpenStore
    ) -> None:
        lease = await running(store)
        other = await open_store()
        assert await other.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),))) == FenceMissed()

    async def test_refused_unit_writes_nothing_and_the_rest_of_its_batch_commits(self, store: Store) -> None:
        lease = await running(store)
        await create(store, OTHER)
        bad = Unit(key=KEY, fence=Fence(lease.fence - 1), events=(said("bad"),), opens=(request(),), title="bad")
        gone = Unit(key=KEY, fence=lease.fence, events=(said("gone"),), promotes=(Promotion(99, "idle"),))
        good = [Unit(key=key, fence=None, events=(info("good"),)) for key in (KEY, OTHER)]
        outcomes = await asyncio.gather(*map(store.commit, (bad, good[0], gone, good[1])))
        assert isinstance(outcomes[0], FenceMissed)
        assert isinstance(outcomes[2], Rejected)
        assert (committed(outcomes[1]).head, committed(outcomes[3]).head) == (4, 2)
        row = await store.row(KEY)
        assert row is not None
        assert (row.head, row.title, row.open_requests) == (4, "", 0)

    async def test_unit_that_cannot_be_stored_fails_alone(self, store: Store) -> None:
        lease = await running(store)
        too_big = Unit(key=KEY, fence=lease.fence, events=(event(said("x").body, time=1 << 70),))
        good = [Unit(key=KEY, fence=lease.fence, events=(said(str(n)),)) for n in range(5)]
        outcomes = await asyncio.gather(*map(store.commit, (*good, too_big, *good)), return_exceptions=True)
        assert isinstance(outcomes[5], Exception)
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 10
        events = await store.events_after(KEY, Position(0), limit=MANY)
        assert [found.position for found in events] == list(range(1, 14))

    async def test_any_text_can_be_stored(self, store: Store) -> None:
        lease = await running(store)
        odd = "\x00 \u2028 \U0001f600 é"
        unit = Unit(
            key=KEY, fence=lease.fence, events=(said(odd),), segments=(segment(odd, offset=0),), title=f"{odd}\ud800"
        )
        assert isinstance(await store.commit(unit), Committed)
        loaded = await store.load(KEY, fold_version=1)
        assert loaded is not None
        assert loaded.events[-1].body == unit.events[0].body
        assert loaded.segments == unit.segments
        assert loaded.row.title == f"{odd}\ufffd"

    async def test_an_event_of_megabytes_is_kept_whole(self, store: Store) -> None:
        lease = await running(store)
        large = said("x" * 5_000_000)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(large,)))
        (found,) = await store.events_after(KEY, Position(3), limit=MANY)
        assert found.body == large.body

    async def test_ledger_counts_a_call_once_and_outlives_its_session(self, store: Store) -> None:
        lease = await running(store)
        unit = Unit(key=KEY, fence=lease.fence, ledger=(ledger("a"), ledger("a", attempt=2, cost=None)))
        await store.commit(unit)
        await store.commit(unit)
        await store.delete(KEY)
        assert await store.ledger(KEY.owner, KEY.session) == unit.ledger
        assert await store.ledger(KEY.owner, OTHER.session) == ()
        assert await store.ledger(Owner("bob")) == ()
