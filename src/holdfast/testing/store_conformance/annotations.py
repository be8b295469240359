"""Annotations beside the log: unread state, pins and metadata; also ledger entries and records outside a turn."""

import asyncio
from collections.abc import Mapping

import pytest

from holdfast.events.ids import Key, MessageId, Owner, Position, SessionId
from holdfast.events.message import AssistantMessage, TextBlock
from holdfast.events.session import TitleChanged
from holdfast.events.turn import TurnEnded
from holdfast.store import crash_points
from holdfast.store.store import NewSession, Refused, Rejected, Row, Store, Unit
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    TURN,
    OpenStore,
    committed,
    create,
    event,
    info,
    ledger,
    running,
    said,
    started,
)

ANSWER = event(AssistantMessage(message_id=MessageId("answer"), blocks=(TextBlock(text="Hello."),)))
ENDED = event(TurnEnded(turn_id=TURN, reason="completed"))


async def row_of(store: Store, key: Key = KEY) -> Row:
    found = await store.row(key)
    assert found is not None
    return found


async def note(
    store: Store, metadata: Mapping[str, str | None] | None = None, *, key: Key = KEY, pinned: bool | None = None
) -> Refused | None:
    return await store.annotate(key, pinned=pinned, metadata=metadata, max_entries=4, max_characters=100)


class AnnotationConformance:
    # Unread sessions

    async def test_output_makes_a_session_unread_and_messages_of_people_do_not(self, store: Store) -> None:
        lease = await running(store)
        assert ((await row_of(store)).shown, (await row_of(store)).is_unread) == (0, False)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(ANSWER, said("more"))))
        assert ((await row_of(store)).shown, (await row_of(store)).is_unread) == (4, True)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("again"), ENDED), status="idle"))
        assert (await row_of(store)).shown == 7
        await store.commit(Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),)))
        assert ((await row_of(store)).shown, (await row_of(store)).head) == (7, 8)

    async def test_events_at_creation_do_not_make_a_session_unread(self, store: Store) -> None:
        made = Unit(key=KEY, fence=None, events=(started(KEY), ANSWER, ENDED), creates=NewSession(created_at=1))
        await store.commit(made)
        assert not (await row_of(store)).is_unread
        await store.commit(Unit(key=KEY, fence=None, events=(info("a line"),)))
        assert (await row_of(store)).is_unread

    async def test_unread_state_is_shared_between_processes(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(ANSWER,)))
        other = await open_store()
        await other.commit(Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),)))
        assert ((await row_of(other)).shown, (await row_of(other)).head) == (4, 5)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))
        assert (await row_of(store)).shown == 4

    # Seen positions

    async def test_seen_position_never_moves_back(self, store: Store) -> None:
        await create(store)
        await store.commit(Unit(key=KEY, fence=None, events=(info("a"), info("b"))))
        assert await store.see(KEY, Position(2)) == 2
        assert (await row_of(store)).is_unread
        assert await store.see(KEY, Position(3)) == 3
        assert await store.see(KEY, Position(1)) == 3
        assert ((await row_of(store)).seen, (await row_of(store)).is_unread) == (3, False)

    async def test_seen_position_is_capped_at_the_head(self, store: Store) -> None:
        await create(store)
        assert await store.see(KEY, Position(1_000_000)) == 1
        await store.commit(Unit(key=KEY, fence=None, events=(info("new"),)))
        assert (await row_of(store)).is_unread

    async def test_concurrent_seen_positions_keep_the_highest(self, store: Store) -> None:
        await create(store)
        await store.commit(Unit(key=KEY, fence=None, events=tuple(info(str(n)) for n in range(20))))
        await asyncio.gather(*(store.see(KEY, Position(n)) for n in (3, 17, 9, 1, 12)))
        assert (await row_of(store)).seen == 17

    async def test_missing_session_has_no_seen_position(self, store: Store) -> None:
        assert await store.see(KEY, Position(1)) is None
        await create(store)
        assert await store.see(Key(Owner("bob"), KEY.session), Position(1)) is None
        await store.delete(KEY)
        assert await store.see(KEY, Position(1)) is None

    async def test_unchanged_annotation_writes_nothing(self, store: Store) -> None:
        await create(store)
        await store.see(KEY, Position(1))
        await note(store, {"a": "1"}, pinned=True)
        reached: list[str] = []
        crash_points.install(reached.append)
        try:
            await store.see(KEY, Position(1))
            await note(store, {"a": "1", "b": None}, pinned=True)
        finally:
            crash_points.install(None)
        assert reached == []

    # Pins and metadata

    async def test_metadata_is_stored_at_creation_and_merged_later(self, store: Store) -> None:
        new = NewSession(created_at=1, metadata={"ticket": "12", "team": "blue"})
        await store.commit(Unit(key=KEY, fence=None, events=(started(KEY),), creates=new))
        assert (await row_of(store)).metadata == {"ticket": "12", "team": "blue"}
        assert await note(store, {"team": None, "state": "open\x00é\ud800"}) is None
        assert (await row_of(store)).metadata == {"ticket": "12", "state": "open\x00é\ufffd"}
        assert await note(store, pinned=True) is None
        assert ((await row_of(store)).metadata["ticket"], (await row_of(store)).pinned) == ("12", True)
        assert await note(store, {"nothing": None}, pinned=False) is None
        assert not (await row_of(store)).pinned

    async def test_too_much_metadata_changes_nothing(self, store: Store) -> None:
        await create(store)
        await note(store, {"a": "1", "b": "2", "c": "3"})
        excesses: tuple[dict[str, str | None], ...] = ({"d": "4", "e": "5"}, {"d": "x" * 100})
        for more in excesses:
            refused = await note(store, more, pinned=True)
            assert refused is not None
            assert refused.code == "metadata_too_large"
        assert await note(store, {"a": None, "b": None, "d": "4", "e": "5"}) is None
        row = await row_of(store)
        assert (row.metadata, row.pinned) == ({"c": "3", "d": "4", "e": "5"}, False)

    async def test_concurrent_metadata_changes_are_merged(self, store: Store, open_store: OpenStore) -> None:
        await create(store)
        other = await open_store()
        await asyncio.gather(*(note(each, {f"k{n}": "v"}) for n, each in enumerate((store, other, store, other))))
        assert sorted((await row_of(store)).metadata) == ["k0", "k1", "k2", "k3"]

    async def test_annotations_change_neither_the_log_nor_the_update_time(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await create(store)
        await clock.advance(1)
        await create(store, OTHER)
        before = await row_of(store)
        await clock.advance(1)
        await note(store, {"a": "1"}, pinned=True)
        await store.see(KEY, Position(1))
        after = await row_of(store)
        assert (after.head, after.updated_at, after.inbox_tail) == (before.head, before.updated_at, before.inbox_tail)
        assert [row.key for row in (await store.rows(KEY.owner, limit=MANY)).rows] == [OTHER, KEY]

    async def test_list_can_select_or_exclude_pinned_sessions(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        for name in ("a", "b", "c", "d"):
            await create(store, Key(KEY.owner, SessionId(name)), title=name)
            await clock.advance(1)
        for name in ("a", "c"):
            await note(store, key=Key(KEY.owner, SessionId(name)), pinned=True)

        async def listed(*, pinned: bool | None, limit: int = MANY) -> list[str]:
            found: list[str] = []
            after = None
            while True:
                page = await store.rows(KEY.owner, limit=limit, after=after, pinned=pinned)
                found += [row.key.session for row in page.rows]
                if (after := page.next) is None:
                    return found

        assert await listed(pinned=None) == ["d", "c", "b", "a"]
        assert await listed(pinned=True, limit=1) == ["c", "a"]
        assert await listed(pinned=False) == ["d", "b"]
        assert (await store.rows(KEY.owner, limit=MANY, text="a", pinned=False)).rows == ()

    async def test_annotations_of_a_missing_or_foreign_session_are_refused(self, store: Store) -> None:
        await create(store)
        for key in (OTHER, Key(Owner("bob"), KEY.session)):
            refused = await note(store, key=key, pinned=True)
            assert refused is not None
            assert refused.code == "session_not_found"

    async def test_annotations_are_deleted_with_their_session(self, store: Store) -> None:
        await create(store)
        await note(store, {"a": "secret"})
        await store.delete(KEY)
        refused = await note(store, pinned=True)
        assert refused is not None
        assert (await store.rows(KEY.owner, limit=MANY)).rows == ()

    # Writes outside a turn

    async def test_ledger_entry_of_a_call_outside_a_turn_needs_no_lease(self, store: Store) -> None:
        await running(store)
        titled = Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),), title="x", ledger=(ledger("t"),))
        committed(await store.commit(titled))
        committed(await store.commit(Unit(key=KEY, fence=None, ledger=(ledger("u"),))))
        assert await store.ledger(KEY.owner, KEY.session) == (ledger("t"), ledger("u"))

    @pytest.mark.parametrize("moved", [False, True])
    async def test_record_that_supposes_a_head_is_rejected_if_it_moved(self, store: Store, moved: bool) -> None:
        await create(store)
        if moved:
            await store.commit(Unit(key=KEY, fence=None, events=(info("meanwhile"),)))
        late = event(TitleChanged(title="late"))
        outcome = await store.commit(
            Unit(key=KEY, fence=None, events=(late,), title="late", supposes_head=Position(1), ledger=(ledger("t"),))
        )
        assert isinstance(outcome, Rejected) == moved
        assert (await row_of(store)).title == ("" if moved else "late")
        assert len(await store.ledger(KEY.owner)) == (0 if moved else 1)
