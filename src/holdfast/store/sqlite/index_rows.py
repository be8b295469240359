"""The rows of the text index: the next steps of logs, their writing, and the passages that are found."""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, Position, SessionId, ToolCallId
from holdfast.store.sqlite import rows
from holdfast.store.sqlite.queries import SQL
from holdfast.store.text_index import (
    BATCH_BYTES,
    BATCH_EVENTS,
    UNREADABLE,
    Hit,
    IndexStep,
    hit_of,
    query_tokens,
    step_of,
)

LOG_MARK: Final = "§"
"""Not in any word: begins the token by which the passages of one log are found."""
NO_TOKEN: Final = '"§"'
"""Matches no passage."""

log = logging.getLogger(__name__)


def behind(db: sqlite3.Connection, owner: Owner, limit: int) -> list[Key]:
    """The owner's sessions whose index is behind their log, the newest first."""
    return [Key(owner, SessionId(id)) for (id,) in db.execute(SQL["behind"], (owner, limit)).fetchall()]


def next_steps(db: sqlite3.Connection, keys: Sequence[Key]) -> tuple[list[IndexStep], list[Key]]:
    """The next part of what is to be indexed of these sessions, and the sessions that need more than that."""
    steps: list[IndexStep] = []
    left: list[Key] = []
    events, size = BATCH_EVENTS, BATCH_BYTES
    for key in keys:
        found = db.execute(SQL["index_mark"], (key.owner, key.session)).fetchone()
        if found is None or found[0] >= found[1]:
            continue
        if events <= 0 or size <= 0:
            left.append(key)
            continue
        mark, head = Position(found[0]), found[1]
        try:
            page = rows.events_after(db, key, mark, events, size)
            step = step_of(key, mark, page)
        except msgspec.MsgspecError as error:
            log.warning(UNREADABLE, key.session, mark, error)
            continue
        events -= len(page)
        size -= step.size
        steps.append(step)
        if step.up_to < head:
            left.append(key)
    return steps, left


def write(db: sqlite3.Connection, steps: Sequence[IndexStep]) -> tuple[list[Key], str | None]:
    """Write each step whose mark nothing else moved. Returns the sessions whose mark something moved."""
    drop_deleted(db)  # First: the numbers of deleted rows are used again.
    moved = [step.key for step in steps if not _write_step(db, step)]
    return moved, "passages" if len(moved) < len(steps) else None


def drop_deleted(db: sqlite3.Connection) -> None:
    """Remove the words of deleted sessions."""
    db.execute(SQL["drop_gone_words"])
    db.execute(SQL["drop_gone"])


def _write_step(db: sqlite3.Connection, step: IndexStep) -> bool:
    key = step.key
    found = db.execute(SQL["move_index_mark"], (key.owner, key.session, step.after, step.up_to)).fetchone()
    if found is None:
        return False
    (log_number,) = found
    for kept, before in step.undone:
        db.execute(SQL["unindex_words"], (log_number, kept, before))
        db.execute(SQL["unindex"], (log_number, kept, before))
    for entry in step.entries:
        (number,) = db.execute(SQL["index_passage"], (log_number, entry.position, entry.tool_call_id)).fetchone()
        tokens = " ".join((f"{LOG_MARK}{log_number}", *entry.tokens))
        db.execute(SQL["index_words"], (number, tokens))
    return True


def matching(tokens: Sequence[str], *, log_number: int | None = None) -> str:
    """The tokens as FTS5's query. They are letters, digits and marks, so none can end its quotes."""
    if not tokens:
        return NO_TOKEN
    within = [] if log_number is None else [f'"{LOG_MARK}{log_number}"']
    return " AND ".join([*within, *(f'"{token}" *' for token in tokens)])


def search_log(db: sqlite3.Connection, key: Key, query: str, limit: int, before: Position | None) -> tuple[Hit, ...]:
    log_number = _log(db, key)
    if log_number is None:
        return ()
    match = matching(query_tokens(key.owner, query), log_number=log_number)
    last = (1 << 62) if before is None else before
    found = db.execute(SQL["search_log"], (log_number, match, last, limit)).fetchall()
    hits = (hit_of(_event(db, key, position), query) for (position,) in found)
    return tuple(hit for hit in hits if hit is not None)


def passages(db: sqlite3.Connection, key: Key, first: Position, last: Position, limit: int) -> tuple[Event, ...]:
    log_number = _log(db, key)
    found = db.execute(SQL["passages"], (log_number, first, last, limit)).fetchall()
    return tuple(_event(db, key, position) for (position,) in found)


def tool_result(db: sqlite3.Connection, key: Key, tool_call_id: ToolCallId) -> Event | None:
    found = db.execute(SQL["tool_result"], (_log(db, key), tool_call_id)).fetchone()
    return None if found is None else _event(db, key, found[0])


def _log(db: sqlite3.Connection, key: Key) -> int | None:
    found = db.execute(SQL["log_of"], (key.owner, key.session)).fetchone()
    return None if found is None else int(found[0])


def _event(db: sqlite3.Connection, key: Key, position: int) -> Event:
    (event,) = rows.events_after(db, key, Position(position - 1), 1)
    return event
