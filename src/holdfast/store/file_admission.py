"""File admission: decides whether a file is added to those of its owner, and what is written then.

The rules are pure and the same for every store, as those of `admission.py` are.
"""

from collections.abc import Generator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.events.ids import SessionId
from holdfast.store.files import ContentId, FileRow
from holdfast.store.store import Refused
from holdfast.store.turn_limits import StoredFiles, TurnLimits


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one `add_file` call."""

    row: FileRow
    """Its `content_id` is a new one, for the case that the store has no content with this digest."""
    session: SessionId | None
    """The session that uses the file from the start."""
    is_stored: bool
    """The object is stored under that content id, which an earlier call reserved."""
    limits: TurnLimits


class FileFact(NamedTuple):
    """A question to the store about the file's owner.

    - `session`: whether the session `of` exists (bool); from here on, it is not deleted
    - `owner_alone`: nothing to tell; from here on, no other transaction changes files of the owner
    - `file`: the file with the id `of` (`FileRow`; None: there is none)
    - `reserved`: whether the content `of` is being stored (bool)
    - `held`: how much the owner has, with what is being stored (`StoredFiles`)
    - `content`: the id of a stored content with the digest `of` (`ContentId`; None: there is none)
    """

    name: Literal["session", "owner_alone", "file", "reserved", "held", "content"]
    of: str = ""


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes of an accepted file."""

    reserves: ContentId | None = None
    """A content to be added as `storing`; the file is not added yet."""
    adds: FileRow | None = None
    stores: bool = False
    """The file's content, which was being stored, is stored from now on."""


REUSED: Final = Refused("id_reused", "This id was already used for another file. Use a new one.")
EXPIRED: Final = Refused("upload_expired", "The upload took too long and was given up. Send the file again.")
NO_SESSION: Final = Refused("session_not_found", "There is no such session.")

FileRule = Generator[FileFact, Any, FilePlan | FileRow | Refused]


def admit_file(new: NewFile) -> FileRule:
    """Decides whether a file is added, or first its content reserved. A `FileRow` is the receipt of a repeated call."""
    row = new.row
    if new.session is not None and not (yield FileFact("session", new.session)):
        return NO_SESSION
    yield FileFact("owner_alone")
    held: FileRow | None = yield FileFact("file", row.file_id)
    if held is not None:
        return held if held.is_same(row) else REUSED
    if new.is_stored:
        is_reserved: bool = yield FileFact("reserved", row.content_id)
        return FilePlan(adds=row, stores=True) if is_reserved else EXPIRED
    if new.limits.bounds_files(row.owner):
        has: StoredFiles = yield FileFact("held")
        if (code := new.limits.refuses_file(has, row.size)) is not None:
            return Refused(code, new.limits.file_sentence(code))
    content_id: ContentId | None = yield FileFact("content", row.digest)
    if content_id is None:
        return FilePlan(reserves=row.content_id)
    return FilePlan(adds=msgspec.structs.replace(row, content_id=content_id))
