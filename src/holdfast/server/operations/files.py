"""Files of owners: uploaded, listed, read, kept and deleted."""

from collections.abc import AsyncGenerator, AsyncIterable, Generator
from contextlib import contextmanager

from holdfast.events.ids import CHOSEN_ID_RULE, FileId, Owner, SessionId, may_be_chosen
from holdfast.files.errors import FileMissing, FileRefused
from holdfast.files.files import Files
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.store.files import FilePage, FileRow
from holdfast.store.store import Key, Store

MAX_ID_CHARACTERS = 64

INVALID = frozenset({"file_name_invalid", "file_type_wrong", "file_too_large"})
"""Refusals that hold whatever the owner has."""


class FileOperations:
    """The verbs of files; one object per runtime, beside `Operations`."""

    def __init__(self, store: Store, files: Files) -> None:
        self._store = store
        self._files = files

    async def add(
        self,
        owner: Owner,
        name: str,
        pieces: AsyncIterable[bytes],
        *,
        media_type: str = "",
        file_id: str | None = None,
        is_kept: bool = False,
    ) -> FileRow:
        """Add a file; it is on disk when this returns. The same id and content again is the same file."""
        if file_id is not None and (len(file_id) > MAX_ID_CHARACTERS or not may_be_chosen(file_id)):
            raise Invalid("id_invalid", f"A file id has 1 to {MAX_ID_CHARACTERS} characters: {CHOSEN_ID_RULE}.")
        chosen = None if file_id is None else FileId(file_id)
        with _refusals():
            return await self._files.add(owner, name, pieces, media_type=media_type, file_id=chosen, is_kept=is_kept)

    async def find(self, owner: Owner, file_id: str) -> FileRow:
        with _refusals():
            return await self._files.find(owner, file_id)

    async def page(self, owner: Owner, *, limit: int, after: str | None = None, session: str | None = None) -> FilePage:
        """The owner's files, newest first; with `session`, those that the session uses. It must exist."""
        if session is not None and await self._store.row(Key(owner, SessionId(session))) is None:
            raise NotFound("session_not_found", f"There is no session {session}.")
        of = None if session is None else SessionId(session)
        return await self._files.page(owner, limit=limit, after=after, session=of)

    async def check(self) -> None:
        """Raise `FilesUnavailable` if the file store can't be reached."""
        await self._files.check()

    def read(self, row: FileRow) -> AsyncGenerator[bytes, None]:
        return self._files.read(row)

    async def keep(self, owner: Owner, file_id: str, *, is_kept: bool) -> FileRow:
        with _refusals():
            return await self._files.keep(owner, file_id, is_kept=is_kept)

    async def delete(self, owner: Owner, file_id: str) -> None:
        with _refusals():
            await self._files.delete(owner, file_id)


@contextmanager
def _refusals() -> Generator[None]:
    """Errors of files as every operation raises them."""
    try:
        yield
    except FileMissing as error:
        raise NotFound(error.code, error.message) from error
    except FileRefused as error:
        raise (Invalid if error.code in INVALID else Conflict)(error.code, error.message) from error
