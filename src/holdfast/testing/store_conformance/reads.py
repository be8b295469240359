"""Reads: catching up, rows, lists, deletion, changes of other processes; and the life of a store."""

import asyncio

import pytest

from holdfast.events.ids import (
    MessageId,
    Owner,
    Position,
    RequestId,
    SessionId,
)
from holdfast.events.session import TitleChanged
from holdfast.store import crash_points
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import (
    Attachment,
    Cursor,
    FenceMissed,
    Key,
    Lease,
    NewSession,
    Rejected,
    Snapshot,
    Store,
    Unit,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.audit import DENIED
from holdfast.testing.store_conformance.files import writes_of_files
from holdfast.testing.store_conformance.keys import LAPTOP
from holdfast.testing.store_conformance.tasks import write_of_tasks
from holdfast.testing.store_conformance.webhooks import write_of_webhooks
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    MANY_MICRODOLLARS,
    OTHER,
    OpenStore,
    asking,
    call,
    committed,
    create,
    event,
    hold,
    info,
    keys_of,
    refused,
    request,
    running,
    said,
    segment,
    send,
    started,
)


class ReadConformance:
    """Catching up, rows, lists, deletion, changes of other processes, and the life of a store."""

    async def test_catch_up_gives_the_log_and_the_message_in_flight(self, store: Store) -> None:
        lease = await asking(store)
        pieces = (segment("Hé", offset=0), segment("llo", offset=3), segment("World", offset=0, block=1))
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=pieces))
        await send(store, "more")
        found = await store.catch_up(KEY, Cursor(Position(1)), limit=MANY)
        assert found is not None
        assert [each.position for each in found.events] == [2, 3]
        assert found.segments == pieces
        assert found.requests == (request(),)
        assert keys_of(found.inbox) == ["more"]
        assert (found.row.head, found.more) == (3, False)

    @pytest.mark.parametrize(
        ("block", "offset", "left"),
        [(0, 0, 3), (0, 2, 3), (0, 3, 2), (0, 5, 2), (0, 6, 1), (1, 0, 1), (1, 5, 0)],
    )
    async def test_cursor_skips_segments_that_the_reader_has(
        self, store: Store, block: int, offset: int, left: int
    ) -> None:
        lease = await running(store)
        pieces = (segment("Hé", offset=0), segment("llo", offset=3), segment("World", offset=0, block=1))
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=pieces))
        seen = Cursor(Position(3), MessageId("answer"), block, offset)
        found = await store.catch_up(KEY, seen, limit=MANY)
        assert found is not None
        assert found.segments == pieces[len(pieces) - left :]

    async def test_a_cursor_in_another_message_skips_nothing(self, store: Store) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=(segment("Hello", offset=0),)))
        found = await store.catch_up(KEY, Cursor(Position(3), MessageId("earlier"), 9, 9), limit=MANY)
        assert found is not None
        assert found.segments == (segment("Hello", offset=0),)

    async def test_a_full_page_has_no_segments_and_says_that_there_is_more(self, store: Store) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=(segment("Hello", offset=0),)))
        page = await store.catch_up(KEY, Cursor(), limit=2)
        assert page is not None
        assert ([each.position for each in page.events], page.segments, page.more) == ([1, 2], (), True)
        rest = await store.catch_up(KEY, Cursor(Position(2)), limit=2)
        assert rest is not None
        assert (len(rest.events), len(rest.segments), rest.more) == (1, 1, False)

    async def test_segments_are_dropped_in_the_unit_of_their_message(self, store: Store) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=(segment("Hello", offset=0),)))
        fresh = segment("Again", offset=0, message="next")
        unit = Unit(key=KEY, fence=lease.fence, events=(said("x"),), drops_segments=True, segments=(fresh,))
        await store.commit(unit)
        loaded = await store.load(KEY, fold_version=1)
        assert loaded is not None
        assert loaded.segments == (fresh,)
        await store.commit(Unit(key=KEY, fence=lease.fence, drops_segments=True))
        loaded = await store.load(KEY, fold_version=1)
        assert loaded is not None
        assert loaded.segments == ()

    async def test_many_messages_in_flight_keep_their_own_segments(self, store: Store) -> None:
        leases = [(await self._streaming(store, SessionId(f"s{number}"))) for number in range(10)]
        for turn in range(130):
            units = [
                Unit(
                    key=lease.key,
                    fence=lease.fence,
                    drops_segments=number % 2 == 0 and turn % 10 == 0,
                    segments=(segment(f"{number}.{turn};", offset=turn * 100),),
                )
                for number, lease in enumerate(leases)
            ]
            await asyncio.gather(*map(store.commit, units))
        for number, lease in enumerate(leases):
            loaded = await store.load(lease.key, fold_version=1)
            assert loaded is not None
            first = 120 if number % 2 == 0 else 0
            assert [piece.text for piece in loaded.segments] == [f"{number}.{turn};" for turn in range(first, 130)]

    async def _streaming(self, store: Store, session: SessionId) -> Lease:
        key = Key(KEY.owner, session)
        await create(store, key)
        await send(store, "m", key=key)
        return await hold(store, key)

    async def test_row_has_its_model_and_its_parent(self, store: Store) -> None:
        new = NewSession(created_at=1, model="large", parent=OTHER.session)
        await store.commit(Unit(key=KEY, fence=None, events=(started(KEY),), creates=new))
        created = await store.row(KEY)
        assert created is not None
        assert (created.model, created.parent) == ("large", OTHER.session)
        await store.commit(Unit(key=KEY, fence=None, events=(info("x"),), model="small"))
        changed = await store.row(KEY)
        assert changed is not None
        assert changed.model == "small"

    async def test_sessions_are_listed_newest_first_in_pages(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        for name in ("a", "b", "c", "d", "e"):
            await create(store, Key(KEY.owner, SessionId(name)))
            if name != "b":
                await clock.advance(1)
        await store.commit(Unit(key=Key(KEY.owner, SessionId("a")), fence=None, events=(info("touched"),)))
        listed: list[str] = []
        after = None
        while True:
            page = await store.rows(KEY.owner, limit=2, after=after)
            listed += [row.key.session for row in page.rows]
            if (after := page.next) is None:
                break
        assert listed == ["a", "e", "d", "b", "c"]
        assert (await store.rows(Owner("bob"), limit=2)).rows == ()
        assert (await store.rows(KEY.owner, limit=2, after="nonsense")).rows == ()

    async def test_search_finds_sessions_by_title_and_by_user_text(self, store: Store) -> None:
        await running(store)
        await create(store, OTHER, title="100% \\ done")
        await store.commit(Unit(key=OTHER, fence=None, events=(event(TitleChanged(title="x")),)))

        async def found(text: str) -> list[str]:
            return [row.key.session for row in (await store.rows(KEY.owner, limit=MANY, text=text)).rows]

        assert await found("100% \\") == ["second"]
        assert await found("HELL") == ["first"]
        assert await found("_") == []
        assert await found("messageId") == []

    async def test_deleted_session_is_gone_for_good(self, store: Store) -> None:
        lease = await asking(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, segments=(segment("x", offset=0),)))
        await store.attach(Attachment(attachment_id="a", key=KEY, node="here"), ttl_seconds=60)
        assert await store.delete(KEY)
        assert not await store.delete(KEY)
        assert await store.row(KEY) is None
        assert await store.load(KEY, fold_version=1) is None
        assert await store.catch_up(KEY, Cursor(), limit=MANY) is None
        assert await store.events_after(KEY, Position(0), limit=MANY) == ()
        assert await store.requests(KEY) == ()
        assert await store.attachments(KEY) == ()
        assert (await store.rows(KEY.owner, limit=MANY)).rows == ()
        assert await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("late"),))) == FenceMissed()
        assert not await store.release(lease, seen_tail=1, how="done")
        assert refused(await send(store, "late")) == "session_not_found"
        assert await create(store) == Rejected("deleted")
        assert await store.claim(limit=MANY) == []

    async def test_deleting_one_session_leaves_the_others(self, store: Store) -> None:
        for key in (KEY, OTHER):
            await create(store, key)
            await send(store, "m", key=key)
            await store.commit(Unit(key=key, fence=None, events=tuple(info(str(n)) for n in range(100))))
        await store.delete(KEY)
        assert len(await store.events_after(OTHER, Position(0), limit=MANY)) == 101
        assert len(await store.waiting_items(OTHER)) == 1

    async def test_commits_are_visible_to_other_processes(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        await create(store)
        committed(await other.commit(Unit(key=KEY, fence=None, events=(info("b"),))))
        committed(await store.commit(Unit(key=KEY, fence=None, events=(info("c"),))))
        committed(await other.commit(Unit(key=KEY, fence=None, events=(info("d"),))))
        events = await store.events_after(KEY, Position(0), limit=MANY)
        assert [each.position for each in events] == [1, 2, 3, 4]

    async def test_changes_of_another_process_are_reported(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        changes = store.changes(wanted=lambda: True)
        heard = asyncio.ensure_future(anext(changes))
        async with asyncio.timeout(20):
            number = 0
            while not heard.done():
                number += 1
                await create(other, Key(KEY.owner, SessionId(f"s{number}")))
                await asyncio.sleep(0)
            await heard
        await store.close()

    # All sessions at once

    async def test_all_processes_see_the_same_database_identity(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        name = await here.identity()
        assert name == await there.identity() == await here.identity()
        assert name.isalnum()
        assert len(name) == 32

    async def test_glance_counts_an_owners_sessions_and_lists_waiting_ones_first(self, store: Store) -> None:
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

    async def test_oldest_unclaimed_gives_the_longest_waiting_session(self, store: Store) -> None:
        assert await store.oldest_unclaimed() is None
        await create(store)
        assert await store.oldest_unclaimed() is None
        await send(store, "m")
        row = await store.row(KEY)
        assert row is not None
        assert await store.oldest_unclaimed() == row.updated_at
        await hold(store)
        assert await store.oldest_unclaimed() is None

    # The life of a store

    async def test_acknowledged_writes_survive_reopening(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        await store.close()
        again = await open_store()
        loaded = await again.load(KEY, fold_version=1)
        assert loaded is not None
        assert (loaded.row.head, loaded.row.held_by) == (3, None)
        assert lease.fence >= 1

    async def test_a_closed_store_says_so_and_can_be_closed_again(self, store: Store) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable) as raised:
            await store.row(KEY)
        assert raised.value.code == "store_closed"
        with pytest.raises(StoreUnavailable):
            await create(store)

    async def test_cancelled_caller_does_not_stop_other_writes(self, store: Store) -> None:
        await create(store)
        impatient = asyncio.ensure_future(store.commit(Unit(key=KEY, fence=None, events=(info("a"),))))
        await asyncio.sleep(0)
        impatient.cancel()
        assert committed(await store.commit(Unit(key=KEY, fence=None, events=(info("b"),)))).head in (2, 3)

    async def test_every_writing_verb_passes_its_crash_points(self, store: Store) -> None:
        reached: list[str] = []
        crash_points.install(reached.append)
        try:
            lease = await asking(store)
            await store.commit(Unit(key=KEY, fence=lease.fence, segments=(segment("x", offset=0),)))
            assert await store.keep_snapshot(lease, Snapshot(1, Position(1), b"folded"))
            assert await store.index_logs([KEY]) == ()
            for message in ("m1", "m2", "m3"):
                await send(store, message)
            await store.edit_item(KEY, "m1", text="x")
            await store.remove_item(KEY, "m1")
            await store.reorder_items(KEY, ["m3", "m2"])
            await store.see(KEY, Position(1))
            await store.annotate(KEY, pinned=True, max_entries=1, max_characters=1)
            await store.attach(Attachment(attachment_id="a", key=KEY, node="here"), ttl_seconds=60)
            await store.decline(KEY, "a", RequestId("r"))
            await store.detach(KEY, "a")
            await store.grant(KEY.owner, "here", ["write"])
            await store.revoke_grant(KEY.owner, "here", "write")
            await store.keep_secret(KEY, keeper=store.process)
            await store.lose_secret(KEY, keeper=store.process)
            await store.drop_secret(KEY)
            await store.add_key(LAPTOP)
            await store.revoke_key(LAPTOP.key_id)
            await store.audit(DENIED)
            await store.trim_audit(DENIED.at + 1)
            await write_of_tasks(store, lease)
            await store.edit_budget(KEY.owner, lambda seen: seen.budget)
            await store.commit(Unit(key=KEY, fence=lease.fence, reserves=call("more", session_cap=MANY_MICRODOLLARS)))
            await write_of_webhooks(store)
            assert [verb async for verb in writes_of_files(store)]
            await store.renew(ttl_seconds=60)
            row = await store.row(KEY)
            assert row is not None
            assert await store.release(lease, seen_tail=row.inbox_tail, how="done")
            await store.settle_left()
            await store.delete(KEY)
        finally:
            crash_points.install(None)
        # This store is open already; the crash campaign covers the crash points of opening one.
        assert {point.split(":")[0] for point in reached} >= set(crash_points.VERBS) - {"register"}
        for before, after in zip(reached[::2], reached[1::2], strict=True):
            assert before.removesuffix(":before") == after.removesuffix(":after")
        assert "commit:holdfast.turn_started+user.message:before" in reached
        assert {"commit:segments:after", "put:message:before"} <= set(reached)
