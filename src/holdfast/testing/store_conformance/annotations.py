"""What owners note about their sessions, beside the log; what is news to them; and the calls made beside a turn."""

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
    # What is news

    async def test_what_a_session_says_is_news_and_what_people_send_is_not(self, store: Store) -> None:
        lease = await running(store)
        assert ((await row_of(store)).shown, (await row_of(store)).is_unread) == (0, False)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(ANSWER, said("more"))))
        assert ((await row_of(store)).shown, (await row_of(store)).is_unread) == (4, True)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("again"), ENDED), status="idle"))
        assert (await row_of(store)).shown == 7
        await store.commit(Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),)))
        assert ((await row_of(store)).shown, (await row_of(store)).head) == (7, 8)

    async def test_what_a_session_was_made_with_is_no_news(self, store: Store) -> None:
        made = Unit(key=KEY, fence=None, events=(started(KEY), ANSWER, ENDED), creates=NewSession(created_at=1))
        await store.commit(made)
        assert not (await row_of(store)).is_unread
        await store.commit(Unit(key=KEY, fence=None, events=(info("a line"),)))
        assert (await row_of(store)).is_unread

    async def test_another_process_knows_what_is_news(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(ANSWER,)))
        other = await open_store()
        await other.commit(Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),)))
        assert ((await row_of(other)).shown, (await row_of(other)).head) == (4, 5)
        await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))
        assert (await row_of(store)).shown == 4

    # How far it was seen

    async def test_what_was_seen_is_no_longer_unread_and_never_becomes_so_again(self, store: Store) -> None:
        await create(store)
        await store.commit(Unit(key=KEY, fence=None, events=(info("a"), info("b"))))
        assert await store.see(KEY, Position(2)) == 2
        assert (await row_of(store)).is_unread
        assert await store.see(KEY, Position(3)) == 3
        assert await store.see(KEY, Position(1)) == 3
        assert ((await row_of(store)).seen, (await row_of(store)).is_unread) == (3, False)

    async def test_nobody_has_seen_what_is_still_to_come(self, store: Store) -> None:
        await create(store)
        assert await store.see(KEY, Position(1_000_000)) == 1
        await store.commit(Unit(key=KEY, fence=None, events=(info("new"),)))
        assert (await row_of(store)).is_unread

    async def test_seen_at_once_by_many_is_seen_as_far_as_any_of_them(self, store: Store) -> None:
        await create(store)
        await store.commit(Unit(key=KEY, fence=None, events=tuple(info(str(n)) for n in range(20))))
        await asyncio.gather(*(store.see(KEY, Position(n)) for n in (3, 17, 9, 1, 12)))
        assert (await row_of(store)).seen == 17

    async def test_nothing_is_seen_of_a_session_that_is_not_there(self, store: Store) -> None:
        assert await store.see(KEY, Position(1)) is None
        await create(store)
        assert await store.see(Key(Owner("bob"), KEY.session), Position(1)) is None
        await store.delete(KEY)
        assert await store.see(KEY, Position(1)) is None

    async def test_what_is_known_already_is_not_written_again(self, store: Store) -> None:
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

    async def test_metadata_is_kept_from_the_start_and_merged_into(self, store: Store) -> None:
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

    async def test_metadata_is_merged_though_many_do_it_at_once(self, store: Store, open_store: OpenStore) -> None:
        await create(store)
        other = await open_store()
        await asyncio.gather(*(note(each, {f"k{n}": "v"}) for n, each in enumerate((store, other, store, other))))
        assert sorted((await row_of(store)).metadata) == ["k0", "k1", "k2", "k3"]

    async def test_notes_neither_move_the_log_nor_make_a_session_newer(self, open_store: OpenStore) -> None:
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

    async def test_pinned_sessions_are_listed_alone_or_left_out(self, open_store: OpenStore) -> None:
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

    async def test_notes_of_a_missing_or_foreign_session_are_refused(self, store: Store) -> None:
        await create(store)
        for key in (OTHER, Key(Owner("bob"), KEY.session)):
            refused = await note(store, key=key, pinned=True)
            assert refused is not None
            assert refused.code == "session_not_found"

    async def test_notes_go_with_their_session(self, store: Store) -> None:
        await create(store)
        await note(store, {"a": "secret"})
        await store.delete(KEY)
        refused = await note(store, pinned=True)
        assert refused is not None
        assert (await store.rows(KEY.owner, limit=MANY)).rows == ()

    async def test_a_row_says_its_model_and_its_parent(self, store: Store) -> None:
        new = NewSession(created_at=1, model="large", parent=OTHER.session)
        await store.commit(Unit(key=KEY, fence=None, events=(started(KEY),), creates=new))
        assert ((await row_of(store)).model, (await row_of(store)).parent) == ("large", OTHER.session)
        await store.commit(Unit(key=KEY, fence=None, events=(info("x"),), model="small"))
        assert (await row_of(store)).model == "small"

    # What is done beside a turn

    async def test_a_call_beside_a_turn_is_on_the_books_without_a_lease(self, store: Store) -> None:
        await running(store)
        titled = Unit(key=KEY, fence=None, events=(event(TitleChanged(title="x")),), title="x", ledger=(ledger("t"),))
        committed(await store.commit(titled))
        committed(await store.commit(Unit(key=KEY, fence=None, ledger=(ledger("u"),))))
        assert await store.ledger(KEY.owner, KEY.session) == (ledger("t"), ledger("u"))

    @pytest.mark.parametrize("moved", [False, True])
    async def test_a_record_may_suppose_the_head_that_it_was_decided_on(self, store: Store, moved: bool) -> None:
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
