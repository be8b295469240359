"""Rows of owners' annotations: how far each session was seen, whether it is pinned, and its metadata."""

import sqlite3
from collections.abc import Mapping

import msgspec

from holdfast.events import codec
from holdfast.events.ids import Position
from holdfast.store.annotations import merged, too_large
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Key, Refused


def begin(db: sqlite3.Connection, key: Key, metadata: Mapping[str, str]) -> None:
    """Write the metadata that a session is created with."""
    db.execute(SQL["annotate"], (key.owner, key.session, 0, False, codec.to_bytes(metadata)))


def has_seen(db: sqlite3.Connection, key: Key, position: Position) -> tuple[bool, Position | None]:
    """Whether the mark need not be written, and the result in that case."""
    found = db.execute(SQL["annotated"], (key.owner, key.session)).fetchone()
    if found is None:
        return True, None
    head, seen = found[:2]
    return min(position, head) <= seen, Position(seen)


def see(db: sqlite3.Connection, key: Key, position: Position) -> tuple[Position | None, str | None]:
    is_known, known = has_seen(db, key, position)
    if is_known:
        return known, None
    head, _, pinned, metadata = db.execute(SQL["annotated"], (key.owner, key.session)).fetchone()
    seen = min(position, head)
    db.execute(SQL["annotate"], (key.owner, key.session, seen, pinned, metadata or b"{}"))
    return Position(seen), "position"


def annotate(
    db: sqlite3.Connection,
    key: Key,
    *,
    pinned: bool | None,
    metadata: Mapping[str, str | None] | None,
    max_entries: int,
    max_characters: int,
) -> tuple[Refused | None, str | None]:
    found = db.execute(SQL["annotated"], (key.owner, key.session)).fetchone()
    if found is None:
        return Refused("session_not_found", "There is no such session."), None
    _, seen, was_pinned, kept = found
    before = read(kept)
    after = before if metadata is None else merged(before, metadata)
    if refused := too_large(after, max_entries=max_entries, max_characters=max_characters):
        return refused, None
    now_pinned = bool(was_pinned) if pinned is None else pinned
    if (after, now_pinned) == (before, bool(was_pinned)):
        return None, None
    db.execute(SQL["annotate"], (key.owner, key.session, seen, now_pinned, codec.to_bytes(after)))
    return None, "notes"


def read(metadata: bytes | str | None) -> dict[str, str]:
    return msgspec.json.decode(metadata, type=dict[str, str]) if metadata else {}
