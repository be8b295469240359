"""Reads within a given snapshot, and the conversion of rows to typed values."""

import base64
import binascii
import logging
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Fence, Owner, Position, SessionId
from holdfast.events.inbox import InboxItem
from holdfast.events.turn import TurnStarted
from holdfast.store.log_pages import PAGE_BYTES, SMALL_BYTES, SMALL_EVENTS
from holdfast.store.sqlite import annotation_rows
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import (
    CaughtUp,
    Claim,
    Cursor,
    Glance,
    Key,
    LedgerEntry,
    Loaded,
    Page,
    RequestRow,
    Row,
    Segment,
    Snapshot,
)
from holdfast.store.text_index import title_pattern
from holdfast.store.turn_limits import Stored, Turns

_TURN_STARTED: Final = str(TurnStarted.__struct_config__.tag)
UNHELD_FENCE: Final = Fence(-1)
_ALL: Final = -1
_LAST_TIME: Final = (1 << 63) - 1

log = logging.getLogger(__name__)


def row(db: sqlite3.Connection, key: Key) -> Row | None:
    found = _row_and_size(db, key)
    return None if found is None else found[0]


def _row_and_size(db: sqlite3.Connection, key: Key) -> tuple[Row, int] | None:
    """The row of a session, and how many bytes its events have."""
    found = db.execute(SQL["row"], (key.owner, key.session)).fetchone()
    return None if found is None else (_row(found), found[19])


def rows(
    db: sqlite3.Connection,
    owner: Owner,
    limit: int,
    after: str | None,
    *,
    text: str,
    matching: str,
    pinned: bool | None,
) -> Page:
    """`matching` is the text as the query of the text index."""
    start = _read_cursor(after)
    if start is None:
        return Page((), None)
    arguments = (owner, *start, title_pattern(text), limit + 1, pinned, matching)
    found = [_row(each) for each in db.execute(SQL["rows"], arguments).fetchall()]
    page = tuple(found[:limit])
    return Page(page, _cursor(page[-1]) if page and len(found) > limit else None)


def glance(db: sqlite3.Connection, owner: Owner, since: int, limit: int) -> Glance:
    counted = {status: (count, lately) for status, count, lately in db.execute(SQL["glance"], (owner, since))}
    first = [Key(owner, SessionId(id)) for (id,) in db.execute(SQL["glance_first"], (owner, limit)).fetchall()]
    return Glance(
        waiting=counted.get("waiting", (0, 0))[0],
        running=counted.get("running", (0, 0))[0],
        queued=counted.get("queued", (0, 0))[0],
        idle=counted.get("idle", (0, 0))[0],
        idle_lately=counted.get("idle", (0, 0))[1],
        first=tuple(found for found in (row(db, key) for key in first) if found is not None),
    )


def turns(db: sqlite3.Connection, owner: Owner) -> Turns:
    ((running, lingering, queued),) = db.execute(SQL["turns"], (owner,))
    return Turns(running=running, lingering=lingering, queued=queued)


def usage(db: sqlite3.Connection, owner: Owner) -> Stored:
    sessions, size = db.execute(SQL["stored"], (owner,)).fetchone()
    return Stored(sessions=sessions, stored_bytes=size)


def load(
    db: sqlite3.Connection, key: Key, fold_version: int, *, limit: int = _ALL, max_bytes: int | None = None
) -> Loaded | None:
    of = (key.owner, key.session)
    session = row(db, key)
    if session is None:
        return None
    kept = db.execute(SQL["snapshot"], (*of, fold_version)).fetchone()
    snapshot = None if kept is None else Snapshot(kept[0], Position(kept[1]), kept[2])
    return Loaded(
        row=session,
        snapshot=snapshot,
        events=events_after(db, key, snapshot.position if snapshot else Position(0), limit, max_bytes),
        inbox=waiting_items(db, key),
        segments=_segments(db, key, Cursor()),
    )


def loaded_along(db: sqlite3.Connection, claim: Claim, fold_version: int) -> Claim:
    """The claim with its session loaded, if the session is known to be small before any of it is read: the claim is not
    committed yet, and a process that died in the load would lose the count of this claim."""
    key = claim.lease.key
    try:
        arguments = (key.owner, key.session, fold_version, SMALL_EVENTS + 1, SMALL_BYTES)
        ((rows_to_read, size),) = db.execute(SQL["load_size"], arguments)
        if rows_to_read > SMALL_EVENTS or size > SMALL_BYTES:
            return claim
        return msgspec.structs.replace(claim, loaded=load(db, key, fold_version))
    except Exception as error:
        # Only this load fails: the holder loads the session again, after the commit, and gets the error then.
        log.warning("session %s could not be read along with its claim: %s", key.session, error)
        return claim


def catch_up(db: sqlite3.Connection, key: Key, cursor: Cursor, limit: int) -> CaughtUp | None:
    found = _row_and_size(db, key)
    if found is None:
        return None
    session, size = found
    events = events_after(db, key, cursor.position, limit, PAGE_BYTES if size > PAGE_BYTES else None)
    more = bool(events) and events[-1].position < session.head
    segments = () if more else _segments(db, key, cursor)
    return CaughtUp(
        events=events,
        segments=segments,
        requests=requests(db, key),
        inbox=waiting_items(db, key),
        row=session,
        more=more,
    )


def events_after(
    db: sqlite3.Connection, key: Key, position: Position, limit: int, max_bytes: int | None = None
) -> tuple[Event, ...]:
    arguments = (key.owner, key.session, position, limit)
    if max_bytes is None:
        found = db.execute(SQL["events_after"], arguments).fetchall()
    else:
        found = db.execute(SQL["events_page"], (*arguments, max_bytes)).fetchall()
    decode = codec.decode
    return tuple([Event(at, id, time, decode(type, version, data)) for at, id, time, type, version, data in found])


def turn_start(db: sqlite3.Connection, key: Key) -> Position | None:
    found = db.execute(SQL["turn_start"], (key.owner, key.session, _TURN_STARTED)).fetchone()
    return None if found is None else Position(found[0])


def waiting_items(db: sqlite3.Connection, key: Key) -> tuple[InboxItem, ...]:
    return tuple(map(inbox_item, db.execute(SQL["waiting_items"], (key.owner, key.session)).fetchall()))


def receipt(db: sqlite3.Connection, key: Key, item_key: str) -> InboxItem | None:
    found = db.execute(SQL["item"], (key.owner, key.session, item_key)).fetchone()
    return None if found is None else inbox_item(found[:7])


def requests(db: sqlite3.Connection, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
    found = db.execute(SQL["requests"], (key.owner, key.session, answered))
    return tuple(
        RequestRow(request_id=id, kind=kind, turn_id=turn_id, tool_call_id=call_id, title=title, opened_at=opened_at)
        for id, kind, turn_id, call_id, title, opened_at in found
    )


def tails(db: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
    found = {key: db.execute(SQL["tail"], (key.owner, key.session)).fetchone() for key in keys}
    return {key: (UNHELD_FENCE, 0) if tail is None else tail for key, tail in found.items()}


def ledger(db: sqlite3.Connection, owner: Owner, session: SessionId | None) -> tuple[LedgerEntry, ...]:
    if session is None:
        rows = db.execute(SQL["ledger"], (owner,))
    else:
        rows = db.execute(SQL["ledger_of_session"], (owner, session))
    return tuple(
        LedgerEntry(
            message_id=message_id,
            attempt=attempt,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=read,
            cost_microdollars=cost,
            time=time,
            cache_write_tokens=cache_write,
            refused=bool(refused),
        )
        for message_id, attempt, model, input_tokens, output_tokens, read, cost, time, cache_write, refused in rows
    )


def prompt(db: sqlite3.Connection, digest: str) -> bytes | None:
    found = db.execute(SQL["prompt"], (digest,)).fetchone()
    return None if found is None else bytes(found[0])


def inbox_item(found: Sequence[Any]) -> InboxItem:
    sequence, key, state, outcome, accepted_at, while_running, payload = found
    return InboxItem(
        sequence=sequence,
        key=key,
        state=state,
        outcome=outcome,
        accepted_at=accepted_at,
        while_running=bool(while_running),
        item=codec.decode_item(payload),
    )


def _row(found: Sequence[Any]) -> Row:
    owner, id, head, tail, status, turn_id, title, host, created, updated, open_requests, waiting, held_by = found[:13]
    model, parent, shown, seen, pinned, metadata = found[13:19]
    return Row(
        key=Key(owner, id),
        head=head,
        inbox_tail=tail,
        status=status,
        turn_id=turn_id,
        title=title,
        host=host,
        created_at=created,
        updated_at=updated,
        open_requests=open_requests,
        waiting_messages=waiting,
        held_by=held_by,
        model=model,
        parent=parent,
        shown=shown,
        seen=seen,
        pinned=bool(pinned),
        metadata=annotation_rows.read(metadata),
    )


def _segments(db: sqlite3.Connection, key: Key, seen: Cursor) -> tuple[Segment, ...]:
    if db.execute(SQL["is_in_flight"], (key.owner, key.session)).fetchone() is None:
        return ()
    cursor = (seen.message_id, seen.block, seen.offset)
    found = db.execute(SQL["segments"], (key.owner, key.session, *cursor))
    return tuple(
        Segment(
            message_id=message_id,
            attempt=attempt,
            block=block,
            offset=start,
            kind=kind,
            text=text.decode(),
            tool_call_id=tool_call_id,
            name=name,
        )
        for message_id, attempt, block, start, kind, text, tool_call_id, name in found
    )


def _cursor(last: Row) -> str:
    return base64.urlsafe_b64encode(f"{last.updated_at}:{last.key.session}".encode()).decode()


def _read_cursor(after: str | None) -> tuple[int, str] | None:
    """Where a page starts; None for a malformed cursor, which has nothing after it."""
    if after is None:
        return _LAST_TIME, ""
    try:
        time, _, id = base64.urlsafe_b64decode(after.encode()).decode().partition(":")
        return int(time), id
    except (binascii.Error, ValueError):
        return None


def identity(db: sqlite3.Connection) -> str:
    return str(db.execute(SQL["identity"]).fetchone()[0])
