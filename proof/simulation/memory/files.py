"""Files, their uses by sessions and their contents."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.events.ids import FileId, Key, Owner, SessionId
from holdfast.store.admission import decided
from holdfast.store.file_admission import FileFact, NewFile, admit_file
from holdfast.store.files import SWEPT_AT_ONCE, ContentId, FilePage, FileRow, Reserved, after_cursor, page_of
from holdfast.store.store import Refused
from holdfast.store.turn_limits import StoredFiles
from proof.simulation.memory.tables import ContentRecord, Database


def add(db: Database, new: NewFile) -> tuple[FileRow | Reserved | Refused, str | None]:
    plan = decided(admit_file(new), partial(_fact, db, new.row.owner))
    if isinstance(plan, FileRow | Refused):
        return plan, None
    row = new.row
    if plan.reserves is not None:
        db.contents[plan.reserves] = ContentRecord(row.owner, row.digest, row.size, "storing", row.created_at)
        return Reserved(plan.reserves), "content"
    assert plan.adds is not None
    if plan.stores:
        db.contents[plan.adds.content_id].state = "stored"
    db.files[row.owner, row.file_id] = plan.adds
    if new.session is not None:
        db.file_uses.add((Key(row.owner, new.session), row.file_id))
    return plan.adds, "file"


def _fact(db: Database, owner: Owner, fact: FileFact) -> Any:
    match fact.name:
        case "session":
            return db.live(Key(owner, SessionId(fact.of))) is not None
        case "owner_alone":
            return None
        case "file":
            return db.files.get((owner, FileId(fact.of)))
        case "reserved":
            found = db.contents.get(ContentId(fact.of))
            return found is not None and found.state == "storing"
        case "held":
            storing = [each for each in db.contents.values() if each.owner == owner and each.state == "storing"]
            sizes = [row.size for row in db.files.values() if row.owner == owner] + [each.size for each in storing]
            return StoredFiles(files=len(sizes), file_bytes=sum(sizes))
        case "content":
            return next(
                (
                    content_id
                    for content_id, each in db.contents.items()
                    if (each.owner, each.digest, each.state) == (owner, fact.of, "stored")
                ),
                None,
            )


def page(db: Database, owner: Owner, limit: int, after: str | None, session: SessionId | None) -> FilePage:
    found = [
        row
        for row in db.files.values()
        if row.owner == owner
        and (session is None or (Key(owner, session), row.file_id) in db.file_uses)
        and (row.created_at, row.file_id) < after_cursor(after)
    ]
    found.sort(key=lambda row: (row.created_at, row.file_id), reverse=True)
    return page_of(found[: limit + 1], limit)


def keep(db: Database, owner: Owner, file_id: FileId, *, is_kept: bool) -> tuple[FileRow | None, str | None]:
    found = db.files.get((owner, file_id))
    if found is None:
        return None, None
    db.files[owner, file_id] = kept = replace(found, is_kept=is_kept)
    return kept, "file"


def delete(db: Database, owner: Owner, file_id: FileId) -> tuple[bool, str | None]:
    if (owner, file_id) not in db.files:
        return False, None
    _delete(db, [(owner, file_id)])
    return True, "file"


def use(db: Database, key: Key, file_ids: Iterable[FileId]) -> tuple[None, str | None]:
    new = {(key, file_id) for file_id in file_ids if (key.owner, file_id) in db.files} - db.file_uses
    if db.live(key) is None or not new:
        return None, None
    db.file_uses |= new
    return None, "files"


def delete_of_session(db: Database, key: Key) -> None:
    """Delete the files that nothing needs when this session is gone."""
    used = [file_id for user, file_id in db.file_uses if user == key]
    db.file_uses = {(user, file_id) for user, file_id in db.file_uses if user != key}
    _delete(db, [(key.owner, file_id) for file_id in used if _is_unused(db, db.files[key.owner, file_id])])


def doom(db: Database, now: int, unused_ms: int, storing_ms: int) -> tuple[tuple[ContentId, ...], str | None]:
    unused = [
        (row.owner, row.file_id)
        for row in db.files.values()
        if row.created_at < now - unused_ms and _is_unused(db, row)
    ]
    _delete(db, unused[:SWEPT_AT_ONCE])
    late = [each for each in db.contents.values() if each.state == "storing" and each.changed_at < now - storing_ms]
    for each in late:
        each.state = "doomed"
    doomed = [content_id for content_id, each in db.contents.items() if each.state == "doomed"]
    return tuple(doomed[:SWEPT_AT_ONCE]), "contents" if unused or late else None


def drop_content(db: Database, content_id: ContentId) -> tuple[None, str | None]:
    found = db.contents.get(content_id)
    if found is None or found.state != "doomed":
        return None, None
    del db.contents[content_id]
    return None, "content"


def home(db: Database, name: str) -> tuple[str, str | None]:
    if db.file_home is not None:
        return db.file_home, None
    db.file_home = name
    return name, "name"


def _is_unused(db: Database, row: FileRow) -> bool:
    return not row.is_kept and not any(
        user.owner == row.owner and file_id == row.file_id for user, file_id in db.file_uses
    )


def _delete(db: Database, files: Iterable[tuple[Owner, FileId]]) -> None:
    for owner, file_id in files:
        gone = db.files.pop((owner, file_id))
        db.file_uses = {(user, id) for user, id in db.file_uses if (user.owner, id) != (owner, file_id)}
        if not any(row.content_id == gone.content_id for row in db.files.values()):
            db.contents[gone.content_id].state = "doomed"
