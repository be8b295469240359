"""Defects of files that the crash campaign must catch."""

from typing import BinaryIO

from holdfast.events.ids import SessionId
from holdfast.files.files import Files
from holdfast.files.spool import Spool
from holdfast.store.files import ContentId, FileRow, Reserved
from holdfast.store.postgres import file_rows as postgres_file_rows
from holdfast.store.sqlite import file_rows as sqlite_file_rows
from proof.crash.plant import replace


def add_a_file_before_its_object() -> None:
    """The row of the file is on disk while its object is still to be stored."""

    async def add(self: Files, row: FileRow, spool: Spool, session: SessionId | None) -> FileRow:
        outcome = await self._store.add_file(row, session=session)
        if isinstance(outcome, Reserved):
            added = await self._store.add_file(row, session=session, is_stored=True)
            assert isinstance(added, FileRow)
            await (await self._opened()).store(outcome.content_id, spool.file)
            return added
        assert isinstance(outcome, FileRow)
        return outcome

    replace(Files, "_add", add)


def drop_a_content_before_its_object() -> None:
    """Nothing finds an object whose removal was cut off."""

    async def sweep(self: Files) -> int:
        for content_id in (doomed := await self._store.doom_contents(unused_ms=0, storing_ms=0)):
            await self._store.drop_content(content_id)
            await (await self._opened()).remove(content_id)
        return len(doomed)

    replace(Files, "sweep", sweep)


def store_an_object_without_its_row() -> None:
    """The object comes first: nothing finds it after a crash."""

    async def add(self: Files, row: FileRow, spool: Spool, session: SessionId | None) -> FileRow:
        source: BinaryIO = spool.file
        await (await self._opened()).store(row.content_id, source)
        return await intact(self, row, spool, session)

    intact = Files._add
    replace(Files, "_add", add)


def keep_the_contents_of_deleted_files() -> None:
    for rows in (sqlite_file_rows, postgres_file_rows):
        replace(rows, "_doom", _nothing if rows is sqlite_file_rows else _nothing_async)


def _nothing(db: object, gone: list[tuple[ContentId]], now: int) -> None:
    return None


async def _nothing_async(db: object, gone: list[tuple[ContentId]], now: int) -> None:
    return None
