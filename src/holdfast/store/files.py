"""The rows of files and of their contents, as stores keep them.

The row of a content is on disk before its object is stored, and goes after its object is removed, so every object is
found through its row. A content is `storing` until the row of its first file is added; nothing refers to it before. A
content that no file refers to any more is `doomed`: it is never used again, and the sweeper removes its object, then
its row. The same bytes uploaded again meanwhile get a new content, with another object.
"""

from typing import Final, NewType

import msgspec

from holdfast.events.ids import FileId, Owner

ContentId = NewType("ContentId", str)
"""Names the object of a content in the file store: the digest, and a random part."""

SWEPT_AT_ONCE: Final = 100
"""The most files, and the most contents, of one sweep: one transaction."""


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a file. A file of another owner counts as missing."""

    owner: Owner
    file_id: FileId
    name: str
    media_type: str
    size: int
    digest: str
    """SHA-256 of its bytes, in hexadecimal."""
    created_at: int
    is_kept: bool = False
    """It stays without a session that uses it."""
    made_by: str = ""
    """The tool call that made it; empty: a person uploaded it."""
    content_id: ContentId = ContentId("")

    def is_same(self, other: "FileRow") -> bool:
        """Whether both have the same name and content, so that they may share an id."""
        return (self.name, self.media_type, self.digest) == (other.name, other.media_type, other.digest)


class Reserved(msgspec.Struct, frozen=True):
    """The owner has no such content yet: store the object under this id, then add the file again."""

    content_id: ContentId


class FilePage(msgspec.Struct, frozen=True):
    rows: tuple[FileRow, ...]
    next: str | None


def page_cursor(row: FileRow) -> str:
    """The cursor of the page after this row."""
    return f"{row.created_at}.{row.file_id}"


def after_cursor(cursor: str | None) -> tuple[int, str]:
    """The time and the id of the row that a page follows; one after all rows for the first page, and for a cursor that
    no page gave."""
    time, _, file_id = (cursor or "").partition(".")
    return (int(time), file_id) if time.isascii() and time.isdigit() and len(time) < 16 else (1 << 62, "")


def page_of(rows: list[FileRow], limit: int) -> FilePage:
    """A page of the rows, of which there is one more than the limit if another page follows."""
    return FilePage(tuple(rows[:limit]), page_cursor(rows[limit - 1]) if len(rows) > limit else None)
