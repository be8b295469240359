"""Rows of owners' annotations: how far each session was seen, whether it is pinned, and its metadata."""

from collections.abc import Mapping

import msgspec

from holdfast.events import codec
from holdfast.events.ids import Position
from holdfast.store.annotations import merged, too_large
from holdfast.store.postgres.connections import Link
from holdfast.store.store import Key, Refused


async def begin(db: Link, key: Key, metadata: Mapping[str, str]) -> None:
    """Write the metadata that a session is created with."""
    await db.run("annotate", key.owner, key.session, 0, False, codec.to_bytes(metadata))


async def has_seen(db: Link, key: Key, position: Position) -> tuple[bool, Position | None]:
    """Whether the mark need not be written, and the result in that case."""
    found = await db.row("annotated", key.owner, key.session)
    if found is None:
        return True, None
    head, seen = found[:2]
    return min(position, head) <= seen, Position(seen)


async def see(db: Link, key: Key, position: Position) -> tuple[Position | None, str | None]:
    await db.row("lock_session", key.owner, key.session)
    found = await db.row("annotated", key.owner, key.session)
    if found is None:
        return None, None
    head, seen, pinned, metadata = found
    reached = min(position, head)
    if reached <= seen:
        return Position(seen), None
    await db.run("annotate", key.owner, key.session, reached, pinned, metadata or b"{}")
    return Position(reached), "position"


async def annotate(
    db: Link,
    key: Key,
    *,
    pinned: bool | None,
    metadata: Mapping[str, str | None] | None,
    max_entries: int,
    max_characters: int,
) -> tuple[Refused | None, str | None]:
    await db.row("lock_session", key.owner, key.session)
    found = await db.row("annotated", key.owner, key.session)
    if found is None:
        return Refused("session_not_found", "There is no such session."), None
    _, seen, was_pinned, kept = found
    before = read(kept)
    after = before if metadata is None else merged(before, metadata)
    if refused := too_large(after, max_entries=max_entries, max_characters=max_characters):
        return refused, None
    now_pinned = was_pinned if pinned is None else pinned
    if (after, now_pinned) == (before, was_pinned):
        return None, None
    await db.run("annotate", key.owner, key.session, seen, now_pinned, codec.to_bytes(after))
    return None, "notes"


def read(metadata: bytes | None) -> dict[str, str]:
    return msgspec.json.decode(metadata, type=dict[str, str]) if metadata else {}
