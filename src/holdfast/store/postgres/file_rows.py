"""The rows of files, of their uses by sessions and of their contents. Every change of an owner's files but those of
`keep` and `drop_content` is alone with the owner: a file can't go while a transaction makes a session use it."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from holdfast.events.ids import FileId, Key, Owner, SessionId
from holdfast.store.file_admission import FileFact, NewFile, admit_file
from holdfast.store.files import SWEPT_AT_ONCE, ContentId, FilePage, FileRow, Reserved, after_cursor, page_of
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.decisions import decided
from holdfast.store.store import Refused
from holdfast.store.turn_limits import StoredFiles


async def add(db: Link, new: NewFile) -> tuple[FileRow | Reserved | Refused, str | None]:
    plan = await decided(admit_file(new), partial(_fact, db, new.row.owner))
    if isinstance(plan, FileRow | Refused):
        return plan, None
    row, now = new.row, new.row.created_at
    if plan.reserves is not None:
        await db.run("reserve_content", plan.reserves, row.owner, row.digest, row.size, now)
        return Reserved(plan.reserves), "content"
    assert plan.adds is not None
    if plan.stores:
        await db.run("content_is_stored", plan.adds.content_id, now)
    await _insert(db, plan.adds)
    if new.session is not None:
        await db.run("use_files", row.owner, new.session, [row.file_id])
    return plan.adds, "file"


async def _fact(db: Link, owner: Owner, fact: FileFact) -> Any:
    match fact.name:
        case "session":
            return await db.row("lock_session", owner, fact.of) is not None
        case "owner_alone":
            return await db.rows("lock_owners", [owner])
        case "file":
            return await find(db, owner, FileId(fact.of))
        case "reserved":
            return await db.row("is_storing", fact.of) is not None
        case "held":
            ((files, size),) = await db.rows("held_files", owner)
            return StoredFiles(files=files, file_bytes=size)
        case "content":
            found = await db.row("stored_content", owner, fact.of)
            return None if found is None else found[0]


async def find(db: Link, owner: Owner, file_id: FileId) -> FileRow | None:
    found = await db.row("file", owner, file_id)
    return None if found is None else _row(found)


async def page(db: Link, owner: Owner, limit: int, after: str | None, session: SessionId | None) -> FilePage:
    given = (owner, *after_cursor(after), limit + 1)
    if session is None:
        found = await db.rows("files", *given)
    else:
        found = await db.rows("files_of_session", *given, session)
    return page_of(list(map(_row, found)), limit)


async def keep(db: Link, owner: Owner, file_id: FileId, *, is_kept: bool) -> tuple[FileRow | None, str | None]:
    if await db.run("keep_file", owner, file_id, is_kept) == 0:
        return None, None
    return await find(db, owner, file_id), "file"


async def delete(db: Link, owner: Owner, file_id: FileId, now: int) -> tuple[bool, str | None]:
    await db.rows("lock_owners", [owner])
    gone = await db.rows("delete_file", owner, file_id)
    if not gone:
        return False, None
    await db.run("delete_uses_of_file", owner, file_id)
    await _doom(db, gone, now)
    return True, "file"


async def use(db: Link, key: Key, file_ids: Sequence[FileId]) -> int:
    """Record uses, and return how many are new."""
    return await db.run("use_files", key.owner, key.session, list(file_ids)) if file_ids else 0


async def use_of_session(db: Link, key: Key, file_ids: Sequence[FileId]) -> tuple[None, str | None]:
    if await db.row("lock_session", key.owner, key.session) is None:
        return None, None
    await db.rows("lock_owners", [key.owner])
    return None, "files" if await use(db, key, file_ids) else None


async def delete_of_session(db: Link, key: Key, now: int) -> None:
    """Delete the files that nothing needs when this session is gone. Its row is locked when this runs."""
    await db.rows("lock_owners", [key.owner])
    gone = await db.rows("delete_files_of_session", key.owner, key.session)
    await db.run("delete_uses_of_session", key.owner, key.session)
    await _doom(db, gone, now)


async def doom(db: Link, now: int, unused_ms: int, storing_ms: int) -> tuple[tuple[ContentId, ...], str | None]:
    unused = await db.rows("unused_files", now - unused_ms, SWEPT_AT_ONCE)
    for owner, rows in groupby(sorted(unused), itemgetter(0)):
        await db.rows("lock_owners", [owner])
        gone = await db.rows("delete_unused_files", owner, [row[1] for row in rows])
        await _doom(db, gone, now)
    late = await db.run("doom_late_contents", now, now - storing_ms, SWEPT_AT_ONCE)
    doomed = tuple(ContentId(id) for (id,) in await db.rows("doomed_contents", SWEPT_AT_ONCE))
    return doomed, "contents" if unused or late else None


async def drop_content(db: Link, content_id: ContentId) -> tuple[None, str | None]:
    dropped = await db.run("drop_content", content_id)
    return None, "content" if dropped else None


async def home(db: Link, name: str) -> tuple[str, str | None]:
    recorded = await db.run("record_file_home", name)
    ((found,),) = await db.rows("file_home")
    return str(found), "name" if recorded else None


async def _insert(db: Link, row: FileRow) -> None:
    about = (row.name, row.media_type, row.size, row.digest, row.created_at, row.is_kept, row.made_by, row.content_id)
    await db.run("insert_file", row.owner, row.file_id, *about)


async def _doom(db: Link, gone: Sequence[tuple[Any, ...]], now: int) -> None:
    if gone:
        await db.run("doom_unused_contents", [content for (content,) in gone], now)


def _row(found: Sequence[Any]) -> FileRow:
    owner, file_id, name, media_type, size, digest, created_at, is_kept, made_by, content_id = found
    return FileRow(
        owner=owner,
        file_id=file_id,
        name=name,
        media_type=media_type,
        size=size,
        digest=digest,
        created_at=created_at,
        is_kept=is_kept,
        made_by=made_by,
        content_id=content_id,
    )
