"""Files of an owner."""

import msgspec


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    media_type: str
    """Told from the content for pictures and PDFs, otherwise as the sender said."""
    size: int
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""
    created_at: int
    """Milliseconds since 1970."""
    kept: bool
    """It stays without a session that uses it."""
    made_by: str | None = None
    """The tool call that made it; null: a person uploaded it."""


class MessageFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as its message shows it. It may be deleted by now."""

    id: str
    name: str
    media_type: str
    size: int


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileView, ...]
    next: str | None
    """The cursor of the next page; null: this is the last."""
