"""Reads within a given snapshot, and the conversion of rows to typed values."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Fence, Owner, Position, SessionId
from holdfast.events.inbox import InboxItem
from holdfast.events.turn import TurnStarted
from holdfast.store.log_pages import PAGE_BYTES, SMALL_BYTES, SMALL_EVENTS
from holdfast.store.postgres import annotation_rows
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.queries import SQL
from holdfast.store.postgres.text import escaped, unescaped
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
READ_ALONG_BYTES: Final = 8 << 20
"""The most bytes of all sessions together that are read along with one claim."""
_LAST_TIME: Final = (1 << 63) - 1


async def row(db: Link, key: Key) -> Row | None:
    return (await _rows(db, [key])).get(key)


async def rows(
    db: Link, owner: Owner, *, limit: int, after: str | None, text: str, matching: str, pinned: bool | None
) -> Page:
    """`matching` is the text as the query of the text index."""
    start = _read_cursor(after)
    if start is None:
        return Page((), None)
    arguments = (owner, *start, title_pattern(text), limit + 1, pinned, matching)
    found = [SessionId(id) for (id,) in await db.rows("listed", *arguments)]
    page = tuple((await _rows(db, [Key(owner, id) for id in found[:limit]])).values())
    return Page(page, _cursor(page[-1]) if page and len(found) > limit else None)


async def glance(db: Link, owner: Owner, since: int, limit: int) -> Glance:
    counted = {status: (count, lately) for status, count, lately in await db.rows("glance", owner, since)}
    first = [Key(owner, SessionId(id)) for (id,) in await db.rows("glance_first", owner, limit)]
    return Glance(
        waiting=counted.get("waiting", (0, 0))[0],
        running=counted.get("running", (0, 0))[0],
        queued=counted.get("queued", (0, 0))[0],
        idle=counted.get("idle", (0, 0))[0],
        idle_lately=counted.get("idle", (0, 0))[1],
        first=tuple((await _rows(db, first)).values()),
    )


async def turns(db: Link, owner: Owner) -> Turns:
    ((running, lingering, queued),) = await db.rows("turns", owner)
    return Turns(running=running, lingering=lingering, queued=queued)


async def usage(db: Link, owner: Owner) -> Stored:
    ((sessions, size),) = await db.rows("stored", owner)
    return Stored(sessions=sessions, stored_bytes=size)


async def identity(db: Link) -> str:
    ((name,),) = await db.rows("identity")
    return str(name)


async def load(
    db: Link, key: Key, fold_version: int, *, limit: int | None = None, max_bytes: int | None = None
) -> Loaded | None:
    session = await row(db, key)
    if session is None:
        return None
    snapshot = (await _snapshots(db, [key], fold_version)).get(key)
    after = snapshot.position if snapshot is not None else Position(0)
    return Loaded(
        row=session,
        snapshot=snapshot,
        events=await events_after(db, key, after, limit, max_bytes),
        inbox=await waiting_items(db, key),
        segments=await _segments(db, key, Cursor()),
    )


async def loaded_along(db: Link, claims: Sequence[Claim], fold_version: int) -> list[Claim]:
    """The claims with their sessions loaded, if these are known to be small before any of them is read."""
    small = await _small(db, [claim.lease.key for claim in claims], fold_version)
    found = await _load(db, await _rows(db, small), fold_version)
    return [msgspec.structs.replace(claim, loaded=found.get(claim.lease.key)) for claim in claims]


async def _small(db: Link, keys: Sequence[Key], fold_version: int) -> list[Key]:
    found = []
    left = READ_ALONG_BYTES
    for number, count, size in await db.rows("load_sizes", *_columns(keys), fold_version, SMALL_EVENTS + 1):
        if count <= SMALL_EVENTS and size <= min(SMALL_BYTES, left):
            found.append(keys[number - 1])
            left -= size
    return found


async def catch_up(db: Link, key: Key, cursor: Cursor, limit: int) -> CaughtUp | None:
    session = await row(db, key)
    if session is None:
        return None
    events = await events_after(db, key, cursor.position, limit, PAGE_BYTES)
    more = bool(events) and events[-1].position < session.head
    return CaughtUp(
        events=events,
        segments=() if more else await _segments(db, key, cursor),
        requests=await requests(db, key),
        inbox=await waiting_items(db, key),
        row=session,
        more=more,
    )


async def events_after(
    db: Link, key: Key, position: Position, limit: int | None, max_bytes: int | None = None
) -> tuple[Event, ...]:
    """A page of events. It is the one read that may be long, so its rows skip the unescaping of `Link.rows`; `_event`
    unescapes the id."""
    arguments = (escaped(key.owner), escaped(key.session), position, limit)
    if max_bytes is None:
        found = await db.raw.fetch(SQL["events_after"], *arguments)
    else:
        found = await db.raw.fetch(SQL["events_page"], *arguments, max_bytes)
    return tuple([_event(*each) for each in found])


async def turn_start(db: Link, key: Key) -> Position | None:
    found = await db.row("turn_start", key.owner, key.session, _TURN_STARTED)
    return None if found is None else Position(found[0])


async def waiting_items(db: Link, key: Key) -> tuple[InboxItem, ...]:
    return tuple(map(inbox_item, await db.rows("waiting_items", key.owner, key.session)))


async def receipt(db: Link, key: Key, item_key: str) -> InboxItem | None:
    found = await db.row("item", key.owner, key.session, item_key)
    return None if found is None else inbox_item(found[:7])


async def requests(db: Link, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
    found = await db.rows("requests", key.owner, key.session, answered)
    return tuple(
        RequestRow(request_id=id, kind=kind, turn_id=turn_id, tool_call_id=call_id, title=title, opened_at=opened_at)
        for id, kind, turn_id, call_id, title, opened_at in found
    )


async def tails(db: Link, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
    found = dict.fromkeys(keys, (UNHELD_FENCE, 0))
    for number, fence, tail in await db.rows("tails", *_columns(keys)):
        found[keys[number - 1]] = (Fence(fence), tail)
    return found


async def ledger(db: Link, owner: Owner, session: SessionId | None) -> tuple[LedgerEntry, ...]:
    return tuple(
        LedgerEntry(
            message_id=message_id,
            attempt=attempt,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read,
            cost_microdollars=cost,
            time=time,
            cache_write_tokens=cache_write,
            refused=bool(refused),
        )
        for message_id, attempt, model, input_tokens, output_tokens, cache_read, cost, time, cache_write, refused in (
            await db.rows("ledger", owner, session)
        )
    )


async def prompt(db: Link, digest: str) -> bytes | None:
    found = await db.rows("prompt", digest)
    return bytes(found[0][0]) if found else None


# Reads of many sessions at a time


async def _rows(db: Link, keys: Sequence[Key]) -> dict[Key, Row]:
    """The rows of the sessions that exist, in the order of `keys`."""
    if not keys:
        return {}
    found = [_row(each) for each in await db.rows("sessions", *_columns(keys))]
    return {each.key: each for each in found}


async def _load(db: Link, known: dict[Key, Row], fold_version: int) -> dict[Key, Loaded]:
    keys = list(known)
    if not keys:
        return {}
    snapshots = await _snapshots(db, keys, fold_version)
    after = {key: snapshots[key].position if key in snapshots else Position(0) for key in keys}
    events: dict[Key, list[Event]] = {key: [] for key in keys}
    inbox: dict[Key, list[InboxItem]] = {key: [] for key in keys}
    segments: dict[Key, list[Segment]] = {key: [] for key in keys}
    owners, sessions = _columns(keys)
    for number, *event in await db.raw.fetch(
        SQL["events_of"], list(map(escaped, owners)), list(map(escaped, sessions)), [after[key] for key in keys]
    ):
        events[keys[number - 1]].append(_event(*event))
    for number, *item in await db.rows("inbox_of", owners, sessions):
        inbox[keys[number - 1]].append(inbox_item(item))
    for number, *piece in await db.rows("segments_of", owners, sessions):
        segments[keys[number - 1]].append(_segment(*piece))
    return {
        key: Loaded(
            row=known[key],
            snapshot=snapshots.get(key),
            events=tuple(events[key]),
            inbox=tuple(inbox[key]),
            segments=tuple(segments[key]),
        )
        for key in keys
    }


async def _snapshots(db: Link, keys: list[Key], fold_version: int) -> dict[Key, Snapshot]:
    found = await db.rows("snapshots_of", *_columns(keys), fold_version)
    return {keys[number - 1]: Snapshot(version, Position(at), state) for number, version, at, state in found}


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str]]:
    return [key.owner for key in keys], [key.session for key in keys]


# Conversion of rows to values


def inbox_item(found: Sequence[Any]) -> InboxItem:
    sequence, key, state, outcome, accepted_at, while_running, payload = found
    return InboxItem(
        sequence=sequence,
        key=key,
        state=state,
        outcome=outcome,
        accepted_at=accepted_at,
        while_running=while_running,
        item=codec.decode_item(payload),
    )


def _row(found: Sequence[Any]) -> Row:
    owner, id, head, tail, status, turn_id, title, host, created, updated, open_requests, waiting, held_by = found[:13]
    model, parent, shown, seen, pinned, metadata = found[13:]
    return Row(
        key=Key(owner, id),
        head=head,
        inbox_tail=tail,
        status=status,
        turn_id=turn_id,
        title=title,
        host=host or None,
        created_at=created,
        updated_at=updated,
        open_requests=open_requests,
        waiting_messages=waiting,
        held_by=held_by,
        model=model,
        parent=parent,
        shown=shown,
        seen=seen,
        pinned=pinned,
        metadata=annotation_rows.read(metadata),
    )


def _event(position: int, id: str, time: int, type: str, version: int, data: bytes) -> Event:
    return Event(Position(position), unescaped(id), time, codec.decode(type, version, data))  # type: ignore[arg-type]


async def _segments(db: Link, key: Key, seen: Cursor) -> tuple[Segment, ...]:
    cursor = (seen.message_id, seen.block, seen.offset)
    return tuple(_segment(*found) for found in await db.rows("segments", key.owner, key.session, *cursor))


def _segment(
    message_id: Any, attempt: int, block: int, start: int, kind: Any, text: bytes, tool_call_id: str, name: str
) -> Segment:
    return Segment(
        message_id=message_id,
        attempt=attempt,
        block=block,
        offset=start,
        kind=kind,
        text=text.decode(),
        tool_call_id=tool_call_id,
        name=name,
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
