"""Owners' annotations of their sessions, beside the log."""

from collections.abc import Mapping

from holdfast.events import codec
from holdfast.events.ids import Key, Position
from holdfast.store.annotations import merged, too_large
from holdfast.store.store import Refused
from proof.simulation.memory.tables import Database


def see(db: Database, key: Key, position: Position) -> tuple[Position | None, str | None]:
    session = db.live(key)
    if session is None:
        return None, None
    seen = Position(min(position, len(session.events)))
    if seen <= session.seen:
        return session.seen, None
    session.seen = seen
    return seen, "position"


def annotate(
    db: Database,
    key: Key,
    *,
    pinned: bool | None,
    metadata: Mapping[str, str | None] | None,
    max_entries: int,
    max_characters: int,
) -> tuple[Refused | None, str | None]:
    session = db.live(key)
    if session is None:
        return Refused("session_not_found", "There is no such session."), None
    cleaned: dict[str, str | None] = codec.without_surrogates(dict(metadata or {}))
    after = merged(session.metadata, cleaned)
    if refused := too_large(after, max_entries=max_entries, max_characters=max_characters):
        return refused, None
    now_pinned = session.is_pinned if pinned is None else pinned
    if (after, now_pinned) == (session.metadata, session.is_pinned):
        return None, None
    session.metadata, session.is_pinned = after, now_pinned
    return None, "notes"
