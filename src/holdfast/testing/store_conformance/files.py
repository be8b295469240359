"""The rows of files and of their contents: they are added, used by sessions, deleted, and their contents doomed."""

import asyncio
from collections.abc import AsyncIterator

from msgspec.structs import replace

from holdfast.events.ids import FileId, Key, MessageId, Owner, SessionId
from holdfast.events.inbox import Message
from holdfast.events.message import AttachedFile
from holdfast.store.files import ContentId, FileRow, Reserved
from holdfast.store.store import Accepted, Refused, Store
from holdfast.store.turn_limits import TurnLimits
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import KEY, OpenStore, accepted, create, refused

FOREIGN = Owner("somebody else")
OTHER = Key(KEY.owner, SessionId("other"))


def file(name: str, *, content: str = "", owner: Owner = KEY.owner, size: int = 10, at: int = 1) -> FileRow:
    content = content or name
    return FileRow(
        owner=owner,
        file_id=FileId(name),
        name=f"{name}.txt",
        media_type="text/plain",
        size=size,
        digest=f"digest of {content}",
        created_at=at,
        content_id=ContentId(f"content of {name}"),
    )


async def added(store: Store, row: FileRow, *, session: SessionId | None = None) -> FileRow:
    """Add a file, with its content if the owner does not have it."""
    outcome = await store.add_file(row, session=session)
    if isinstance(outcome, Reserved):
        outcome = await store.add_file(row, session=session, is_stored=True)
    assert isinstance(outcome, FileRow), outcome
    return outcome


async def put(store: Store, sent: Message, *, max_file_bytes: int = 1_000) -> Accepted | Refused:
    return await store.put(KEY, sent, item_key=sent.message_id, queue_limit=9, max_file_bytes=max_file_bytes)


async def doomed(store: Store) -> set[str]:
    return set(await store.doom_contents(unused_ms=1 << 50, storing_ms=1 << 50))


async def writes_of_files(store: Store) -> AsyncIterator[str]:
    """Call each writing verb of files, for a session that exists, and yield its name after the write."""
    used, unused = await added(store, file("used")), await added(store, file("unused"))
    yield "add_file"
    await store.use_files(KEY, [used.file_id])
    yield "use_files"
    assert await store.keep_file(KEY.owner, used.file_id, is_kept=True) is not None
    yield "keep_file"
    assert await store.delete_file(KEY.owner, used.file_id)
    yield "delete_file"
    assert set(await store.doom_contents(unused_ms=0, storing_ms=0)) == {used.content_id, unused.content_id}
    yield "doom_contents"
    await store.drop_content(used.content_id)
    yield "drop_content"
    assert await store.file_home("here") == "here"
    yield "file_home"


class FileConformance:
    async def test_a_file_exists_once_its_content_is_stored(self, store: Store) -> None:
        row = file("a")
        assert await store.add_file(row) == Reserved(row.content_id)
        assert await store.file(KEY.owner, row.file_id) is None
        assert await store.add_file(row, is_stored=True) == row
        assert await store.file(KEY.owner, row.file_id) == row
        assert await store.file(FOREIGN, row.file_id) is None, "a foreign file is missing"

    async def test_the_same_file_again_is_the_same_and_other_content_is_refused(self, store: Store) -> None:
        row = await added(store, file("a"))
        assert await store.add_file(replace(file("a", at=9), content_id=ContentId("new"))) == row
        outcome = await store.add_file(file("a", content="other"))
        assert isinstance(outcome, Refused)
        assert outcome.code == "id_reused"
        assert await store.file(KEY.owner, row.file_id) == row

    async def test_files_of_one_owner_share_a_content_and_those_of_two_do_not(self, store: Store) -> None:
        first = await added(store, file("a", content="same"))
        second = await store.add_file(file("b", content="same"))
        assert isinstance(second, FileRow)
        assert second.content_id == first.content_id
        assert isinstance(await store.add_file(file("c", content="same", owner=FOREIGN)), Reserved)
        assert await store.delete_file(KEY.owner, first.file_id)
        assert await doomed(store) == set(), "the other file still needs it"
        assert await store.delete_file(KEY.owner, second.file_id)
        assert await doomed(store) == {first.content_id}

    async def test_a_doomed_content_is_never_used_again(self, store: Store) -> None:
        row = await added(store, file("a", content="same"))
        assert await store.delete_file(KEY.owner, row.file_id)
        assert not await store.delete_file(KEY.owner, row.file_id)
        assert not await store.delete_file(FOREIGN, row.file_id)
        new = file("b", content="same")
        assert await store.add_file(new) == Reserved(new.content_id)
        assert await doomed(store) == {row.content_id}
        await store.drop_content(row.content_id)
        await store.drop_content(new.content_id)
        assert await doomed(store) == set()
        assert await store.add_file(new, is_stored=True) == new, "only a doomed content is dropped"

    async def test_an_upload_that_was_given_up_can_not_be_completed(self, open_store: OpenStore) -> None:
        clock = ManualClock(start_ms=1_000)
        store = await open_store(clock=clock)
        row = file("a", at=clock.now_ms())
        assert isinstance(await store.add_file(row), Reserved)
        assert await store.doom_contents(unused_ms=50, storing_ms=50) == ()
        await clock.advance(0.2)
        assert await store.doom_contents(unused_ms=50, storing_ms=50) == (row.content_id,)
        outcome = await store.add_file(row, is_stored=True)
        assert isinstance(outcome, Refused)
        assert outcome.code == "upload_expired"
        assert await store.file(KEY.owner, row.file_id) is None

    async def test_files_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        await create(store)
        for number in range(5):
            await added(store, file(f"f{number}", at=1 + number // 2), session=KEY.session if number > 2 else None)
        await added(store, file("foreign", owner=FOREIGN))
        seen, after = [], None
        while True:
            page = await store.files(KEY.owner, limit=2, after=after)
            seen.append([row.file_id for row in page.rows])
            after = page.next
            if after is None:
                break
        assert seen == [["f4", "f3"], ["f2", "f1"], ["f0"]]
        used = await store.files(KEY.owner, limit=10, session=KEY.session)
        assert [row.file_id for row in used.rows] == ["f4", "f3"]
        assert (await store.files(KEY.owner, limit=2, after="no cursor")).rows[0].file_id == "f4"

    async def test_a_session_takes_along_the_files_that_no_other_session_uses(self, store: Store) -> None:
        for key in (KEY, OTHER):
            await create(store, key)
        for name in ("own", "shared", "kept", "unused"):
            await added(store, file(name))
        assert (await store.keep_file(KEY.owner, FileId("kept"), is_kept=True)) is not None
        assert await store.keep_file(FOREIGN, FileId("kept"), is_kept=True) is None
        await store.use_files(KEY, [FileId(name) for name in ("own", "shared", "kept", "missing")])
        await store.use_files(OTHER, [FileId("shared")])
        assert await store.delete(KEY)
        left = {row.file_id for row in (await store.files(KEY.owner, limit=10)).rows}
        assert left == {"shared", "kept", "unused"}
        assert await doomed(store) == {"content of own"}
        assert await store.delete(OTHER)
        assert await store.file(KEY.owner, FileId("shared")) is None
        assert await doomed(store) == {"content of own", "content of shared"}

    async def test_a_message_uses_the_files_that_its_owner_has(self, store: Store) -> None:
        await create(store)
        for row in (file("a"), file("b"), file("foreign", owner=FOREIGN)):
            await added(store, row)
        named = tuple(map(FileId, ("b", "foreign", "missing", "a", "b")))
        sent = Message(message_id=MessageId("m"), text="look", file_ids=named)
        forged = replace(sent, files=(AttachedFile(file_id=FileId("x"), name="x", media_type="x", size=1),))
        first = accepted(await put(store, forged))
        assert isinstance(first.item.item, Message)
        assert [(at.file_id, at.name, at.size) for at in first.item.item.files] == [
            ("b", "b.txt", 10),
            ("a", "a.txt", 10),
        ]
        used = (await store.files(KEY.owner, limit=9, session=KEY.session)).rows
        assert {row.file_id for row in used} == {"a", "b"}
        await store.delete_file(KEY.owner, FileId("a"))
        again = accepted(await put(store, sent))
        assert again.duplicate
        assert again.item == first.item
        assert refused(await put(store, replace(sent, file_ids=named[1:]))) == "id_reused"

    async def test_the_files_of_a_message_have_so_many_bytes_and_no_more(self, store: Store) -> None:
        await create(store)
        for name in ("a", "b"):
            await added(store, file(name, size=60))
        sent = Message(message_id=MessageId("m"), text="look", file_ids=(FileId("a"), FileId("b")))
        assert refused(await put(store, sent, max_file_bytes=119)) == "message_files_too_large"
        assert (await store.files(KEY.owner, limit=9, session=KEY.session)).rows == ()
        assert not accepted(await put(store, sent, max_file_bytes=120)).duplicate

    async def test_a_file_is_not_added_for_a_session_that_is_gone(self, store: Store) -> None:
        await create(store)
        await store.add_file(file("late"), session=KEY.session)
        assert await store.delete(KEY)
        for row, is_stored in ((file("a"), False), (file("late"), True)):
            outcome = await store.add_file(row, session=KEY.session, is_stored=is_stored)
            assert isinstance(outcome, Refused)
            assert outcome.code == "session_not_found"
        await added(store, file("b"))
        await store.use_files(KEY, [FileId("b")])
        assert (await store.files(KEY.owner, limit=9, session=KEY.session)).rows == ()

    async def test_files_that_no_session_uses_go_after_a_while_unless_they_are_kept(
        self, open_store: OpenStore
    ) -> None:
        clock = ManualClock(start_ms=1_000)
        store = await open_store(clock=clock)
        await create(store)
        for name in ("used", "kept", "forgotten"):
            await added(store, file(name, at=clock.now_ms()), session=KEY.session if name == "used" else None)
        await store.keep_file(KEY.owner, FileId("kept"), is_kept=True)
        await clock.advance(1)
        await added(store, file("new", at=clock.now_ms()))
        assert await store.doom_contents(unused_ms=500, storing_ms=500) == ("content of forgotten",)
        left = {row.file_id for row in (await store.files(KEY.owner, limit=10)).rows}
        assert left == {"used", "kept", "new"}

    async def test_an_owner_has_so_many_files_and_bytes_and_no_more(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(files=3, file_bytes=100))
        await added(store, file("a", size=40))
        assert isinstance(await store.add_file(file("coming", size=40)), Reserved)
        outcome = await store.add_file(file("b", size=21))
        assert isinstance(outcome, Refused)
        assert outcome.code == "files_full", "what is being stored counts"
        await added(store, file("b", size=20))
        outcome = await store.add_file(file("c", size=0))
        assert isinstance(outcome, Refused)
        assert outcome.code == "too_many_files"
        await added(store, file("c", owner=FOREIGN, size=100))
        coming = file("coming", size=40)
        assert await store.add_file(coming, is_stored=True) == coming, "its room was reserved"

    async def test_of_files_that_come_at_once_no_more_are_taken_than_have_room(self, open_store: OpenStore) -> None:
        limits = TurnLimits(files=100, file_bytes=100)
        stores = [await open_store(limits=limits) for _ in range(2)]
        outcomes = await asyncio.gather(
            *(stores[number % 2].add_file(file(f"f{number}", size=40)) for number in range(6))
        )
        assert sum(isinstance(outcome, Reserved) for outcome in outcomes) == 2

    async def test_a_database_names_one_file_store(self, open_store: OpenStore) -> None:
        first, second = await open_store(), await open_store()
        assert await first.file_home("here") == "here"
        assert await second.file_home("there") == "here"
        assert await second.file_home("here") == "here"
