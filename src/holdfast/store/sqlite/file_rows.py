"""The rows of files, of their uses by sessions and of their contents."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from holdfast.events.ids import FileId, Key, Owner, SessionId
from holdfast.store.admission import decided
from holdfast.store.file_admission import FileFact, NewFile, admit_file
from holdfast.store.files import SWEPT_AT_ONCE, ContentId, FilePage, FileRow, Reserved, after_cursor, page_of
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Refused
from holdfast.store.turn_limits import StoredFiles


def add(db: sqlite3.Connection, new: NewFile) -> tuple[FileRow | Reserved | Refused, str | None]:
    plan = decided(admit_file(new), partial(_fact, db, new.row.owner))
    if isinstance(plan, FileRow | Refused):
        return plan, None
    row, now = new.row, new.row.created_at
    if plan.reserves is not None:
        db.execute(SQL["reserve_content"], (plan.reserves, row.owner, row.digest, row.size, now))
        return Reserved(plan.reserves), "content"
    assert plan.adds is not None
    if plan.stores:
        db.execute(SQL["content_is_stored"], (plan.adds.content_id, now))
    _insert(db, plan.adds)
    if new.session is not None:
        db.execute(SQL["use_file"], (row.owner, new.session, row.file_id))
    return plan.adds, "file"


def _fact(db: sqlite3.Connection, owner: Owner, fact: FileFact) -> Any:
    """One writer has the whole database, so its transaction is alone with every owner."""
    match fact.name:
        case "session":
            return db.execute(SQL["put_session"], (owner, fact.of)).fetchone() is not None
        case "owner_alone":
            return None
        case "file":
            return find(db, owner, FileId(fact.of))
        case "reserved":
            return db.execute(SQL["is_storing"], (fact.of,)).fetchone() is not None
        case "held":
            files, size = db.execute(SQL["held_files"], (owner,)).fetchone()
            return StoredFiles(files=files, file_bytes=size)
        case "content":
            found = db.execute(SQL["stored_content"], (owner, fact.of)).fetchone()
            return None if found is None else found[0]


def find(db: sqlite3.Connection, owner: Owner, file_id: FileId) -> FileRow | None:
    found = db.execute(SQL["file"], (owner, file_id)).fetchone()
    return None if found is None else _row(found)


def page(db: sqlite3.Connection, owner: Owner, limit: int, after: str | None, session: SessionId | None) -> FilePage:
    given = (owner, *after_cursor(after), limit + 1)
    if session is None:
        found = db.execute(SQL["files"], given)
    else:
        found = db.execute(SQL["files_of_session"], (*given, session))
    return page_of(list(map(_row, found)), limit)


def keep(db: sqlite3.Connection, owner: Owner, file_id: FileId, *, is_kept: bool) -> tuple[FileRow | None, str | None]:
    if db.execute(SQL["keep_file"], (owner, file_id, is_kept)).rowcount == 0:
        return None, None
    return find(db, owner, file_id), "file"


def delete(db: sqlite3.Connection, owner: Owner, file_id: FileId, now: int) -> tuple[bool, str | None]:
    gone = db.execute(SQL["delete_file"], (owner, file_id)).fetchall()
    if not gone:
        return False, None
    db.execute(SQL["delete_uses_of_file"], (owner, file_id))
    _doom(db, gone, now)
    return True, "file"


def use(db: sqlite3.Connection, key: Key, file_ids: Iterable[FileId]) -> int:
    """Record uses, and return how many are new."""
    return sum(db.execute(SQL["use_file"], (key.owner, key.session, file_id)).rowcount for file_id in file_ids)


def use_of_session(db: sqlite3.Connection, key: Key, file_ids: Iterable[FileId]) -> tuple[None, str | None]:
    if db.execute(SQL["put_session"], (key.owner, key.session)).fetchone() is None:
        return None, None
    return None, "files" if use(db, key, file_ids) else None


def delete_of_session(db: sqlite3.Connection, key: Key, now: int) -> None:
    """Delete the files that nothing needs when this session is gone."""
    of = (key.owner, key.session)
    gone = db.execute(SQL["delete_files_of_session"], of).fetchall()
    db.execute(SQL["delete_uses_of_session"], of)
    _doom(db, gone, now)


def doom(db: sqlite3.Connection, now: int, unused_ms: int, storing_ms: int) -> tuple[tuple[ContentId, ...], str | None]:
    unused = db.execute(SQL["unused_files"], (now - unused_ms, SWEPT_AT_ONCE)).fetchall()
    for owner, rows in groupby(sorted(unused), itemgetter(0)):
        gone = db.execute(SQL["delete_unused_files"], (owner, json.dumps([row[1] for row in rows]))).fetchall()
        _doom(db, gone, now)
    late = db.execute(SQL["doom_late_contents"], (now, now - storing_ms, SWEPT_AT_ONCE)).rowcount
    doomed = tuple(ContentId(id) for (id,) in db.execute(SQL["doomed_contents"], (SWEPT_AT_ONCE,)))
    return doomed, "contents" if unused or late else None


def drop_content(db: sqlite3.Connection, content_id: ContentId) -> tuple[None, str | None]:
    dropped = db.execute(SQL["drop_content"], (content_id,)).rowcount
    return None, "content" if dropped else None


def home(db: sqlite3.Connection, name: str) -> tuple[str, str | None]:
    recorded = db.execute(SQL["record_file_home"], (name,)).rowcount
    return str(db.execute(SQL["file_home"]).fetchone()[0]), "name" if recorded else None


def _insert(db: sqlite3.Connection, row: FileRow) -> None:
    about = (row.name, row.media_type, row.size, row.digest, row.created_at, row.is_kept, row.made_by, row.content_id)
    db.execute(SQL["insert_file"], (row.owner, row.file_id, *about))


def _doom(db: sqlite3.Connection, gone: Sequence[tuple[Any]], now: int) -> None:
    if gone:
        db.execute(SQL["doom_unused_contents"], (json.dumps([content for (content,) in gone]), now))


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
        is_kept=bool(is_kept),
        made_by=made_by,
        content_id=content_id,
    )
