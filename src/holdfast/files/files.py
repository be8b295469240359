"""The files of owners: their rows in the store, their bytes as objects in the file store.

The order of the writes, with what a crash after each leaves:

1. an unnamed spool on this machine's disk: nothing
2. the row of the content, as being stored: a row that the sweeper gives up
3. the object: an object that the sweeper finds through that row
4. the row of the file, with which the content is stored: the file; it is acknowledged after this

A deleted file is gone with its row. Its object follows, and then the row of its content: `sweep` repeats both.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.events.ids import FileId, Owner, SessionId, random_id
from holdfast.files.errors import FileMissing, FileRefused, FilesUnavailable
from holdfast.files.media_types import media_type_of
from holdfast.files.names import check_name
from holdfast.files.objects import Objects
from holdfast.files.spool import Spool
from holdfast.store import crash_points
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.files import ContentId, FilePage, FileRow, Reserved
from holdfast.store.store import Refused, Store

log = logging.getLogger(__name__)

STORE_SECONDS: Final = 1_800.0
"""How long storing one object may take: less than an upload may take before it is given up, so that no object can come
after its row is dropped."""

ELSEWHERE: Final = (
    "This process looks for files in {place}, but the files of this database are in another file store. Set "
    "HOLDFAST_FILES to the same bucket or shared folder for all processes."
)


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of single files, and how long what is not used stays."""

    max_bytes: int = 512_000_000
    uploads_per_owner: int = 4
    """Uploads of one owner at a time: each takes up disk, and a connection."""
    unused_seconds: float = 86_400.0
    storing_seconds: float = 3_600.0


class Files:
    """One per process. The file store is opened when it is first needed."""

    def __init__(
        self,
        store: Store,
        open_objects: Callable[[], Objects],
        clock: Clock,
        *,
        spool_folder: Path,
        limits: FileLimits,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._store = store
        self._open_objects = open_objects
        self._clock = clock
        self._spool_folder = spool_folder
        self.limits = limits
        self._new_id = new_id
        self._objects: Objects | None = None
        self._opening = asyncio.Lock()
        self._uploads: Counter[Owner] = Counter()
        self._unswept = asyncio.Event()

    # Reading

    async def find(self, owner: Owner, file_id: str) -> FileRow:
        row = await self._store.file(owner, FileId(file_id))
        if row is None:
            raise FileMissing(file_id)
        return row

    async def page(
        self, owner: Owner, *, limit: int, after: str | None = None, session: SessionId | None = None
    ) -> FilePage:
        return await self._store.files(owner, limit=limit, after=after, session=session)

    async def read(self, row: FileRow, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a file. A file that is deleted meanwhile may be cut, which is an error and not its end."""
        objects = await self._opened()
        until = row.size if end is None else min(end, row.size)
        got = start
        async for data in objects.read(row.content_id, start, until):
            got += len(data)
            yield data
        if got < until:
            raise FilesUnavailable(f"The object {row.content_id} ends at {got:,} bytes, before its file does.")

    async def read_whole(self, row: FileRow) -> bytes:
        """For small files: all of it is in memory."""
        return b"".join([data async for data in self.read(row)])

    # Writing

    async def add(
        self,
        owner: Owner,
        name: str,
        pieces: AsyncIterable[bytes],
        *,
        media_type: str = "",
        file_id: FileId | None = None,
        is_kept: bool = False,
        session: SessionId | None = None,
        made_by: str = "",
    ) -> FileRow:
        """Add a file; it is on disk when this returns. The same id with the same content again is the same file. If
        the pieces end in an error, nothing is left."""
        check_name(name)
        if self._uploads[owner] >= self.limits.uploads_per_owner:
            raise FileRefused("too_many_uploads", "Too many of your uploads run at once. Send it again in a moment.")
        self._uploads[owner] += 1
        try:
            with Spool(self._spool_folder) as spool:
                await spool.fill(pieces, max_bytes=self.limits.max_bytes)
                kind = media_type_of(name, media_type, spool.head, spool.tail, spool.size)
                row = FileRow(
                    owner=owner,
                    file_id=FileId(self._new_id()) if file_id is None else file_id,
                    name=name,
                    media_type=kind,
                    size=spool.size,
                    digest=spool.digest,
                    created_at=self._clock.now_ms(),
                    is_kept=is_kept,
                    made_by=made_by,
                    content_id=ContentId(f"{spool.digest}-{self._new_id()}"),
                )
                return await self._add(row, spool, session)
        finally:
            self._uploads[owner] -= 1
            self._uploads += Counter()  # Without owners that have none.

    async def _add(self, row: FileRow, spool: Spool, session: SessionId | None) -> FileRow:
        objects = await self._opened()
        outcome = await self._store.add_file(row, session=session)
        if isinstance(outcome, Reserved):
            try:
                crash_points.reach("store_object:file:before")
                async with asyncio.timeout(STORE_SECONDS):
                    await objects.store(outcome.content_id, spool.file)
                crash_points.reach("store_object:file:after")
            except TimeoutError:
                raise FilesUnavailable(f"{objects.place} took too long to store a file.") from None
            outcome = await self._store.add_file(row, session=session, is_stored=True)
        match outcome:
            case FileRow():
                return outcome
            case Refused(code=code, message=message):
                raise FileRefused(code, message)
            case Reserved():
                raise AssertionError("a stored content is not reserved again")

    async def keep(self, owner: Owner, file_id: str, *, is_kept: bool) -> FileRow:
        row = await self._store.keep_file(owner, FileId(file_id), is_kept=is_kept)
        if row is None:
            raise FileMissing(file_id)
        return row

    async def delete(self, owner: Owner, file_id: str) -> None:
        if not await self._store.delete_file(owner, FileId(file_id)):
            raise FileMissing(file_id)
        self.sweep_soon()

    # The file store

    async def check(self) -> None:
        """Open the file store, unless that was done. Raises `FilesUnavailable` if it is not the one where the files of
        the database are."""
        await self._opened()

    async def _opened(self) -> Objects:
        async with self._opening:
            if self._objects is None:
                objects = self._open_objects()
                name = await objects.home(self._new_id())
                if await self._store.file_home(name) != name:
                    raise FilesUnavailable(ELSEWHERE.format(place=objects.place), code="files_elsewhere")
                self._objects = objects
            return self._objects

    # What nothing needs any more

    def sweep_soon(self) -> None:
        """Wake the sweeper: objects may be left to remove."""
        self._unswept.set()

    async def sweep(self) -> int:
        """Delete files and contents that nothing needs any more, and return how many contents were removed. Safe to
        repeat, also in several processes at once."""
        swept = 0
        unused_ms, storing_ms = int(self.limits.unused_seconds * 1000), int(self.limits.storing_seconds * 1000)
        while doomed := await self._store.doom_contents(unused_ms=unused_ms, storing_ms=storing_ms):
            objects = await self._opened()
            for content_id in doomed:
                crash_points.reach("remove_object:file:before")
                await objects.remove(content_id)
                crash_points.reach("remove_object:file:after")
                await self._store.drop_content(content_id)
            swept += len(doomed)
        return swept

    async def keep_swept(self, *, every_seconds: float) -> None:
        """Sweep now and then, and soon after a deletion, until this is cancelled."""
        while True:
            try:
                async with asyncio.timeout(every_seconds):
                    await self._unswept.wait()
            except TimeoutError:
                pass
            self._unswept.clear()
            try:
                await self.sweep()
            except (StoreError, FilesUnavailable) as error:
                log.warning("files were not swept: %s", error.message)
