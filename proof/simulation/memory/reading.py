"""Reads. Each sees one moment, because nothing else runs meanwhile."""

import itertools
from collections.abc import Callable, Sequence

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Fence, Owner, Position, SessionId
from holdfast.events.turn import TurnStarted
from holdfast.store.log_pages import PAGE_BYTES, PAGE_EVENTS, SMALL_BYTES, SMALL_EVENTS
from holdfast.store.store import CaughtUp, Cursor, Glance, Key, LedgerEntry, Loaded, Page, Row, Segment
from proof.simulation.memory.tables import Database, SessionRecord

_ORDER = {"waiting": 0, "running": 1, "queued": 2, "idle": 3}


def row(db: Database, key: Key) -> Row | None:
    session = db.live(key)
    return None if session is None else _row(session)


def _row(session: SessionRecord) -> Row:
    return Row(
        key=session.key,
        head=Position(len(session.events)),
        inbox_tail=session.tail,
        status=session.status,
        turn_id=session.turn_id,
        title=session.title,
        host=session.host,
        created_at=session.created_at,
        updated_at=session.updated_at,
        open_requests=len(session.open_requests()),
        waiting_messages=len(session.waiting_messages()),
        held_by=session.holder,
        model=session.model,
        parent=session.parent or session.made_from,
        shown=session.shown,
        seen=session.seen,
        pinned=session.is_pinned,
        metadata=session.metadata,
    )


def rows(
    db: Database,
    owner: Owner,
    *,
    limit: int,
    after: str | None,
    text: str,
    is_found: Callable[[SessionRecord], bool],
    pinned: bool | None,
) -> Page:
    """`is_found` says whether the text was said in a session."""
    wanted = [session for session in db.of_owner(owner) if pinned in (None, session.is_pinned)]
    found = sorted(wanted, key=lambda session: (-session.updated_at, session.key.session))
    if after is not None:
        time, _, id = after.partition(":")
        if not time.isdigit():
            return Page((), None)
        found = [each for each in found if (-each.updated_at, each.key.session) > (-int(time), id)]
    if text:
        found = [each for each in found if text.lower() in each.title.lower() or is_found(each)]
    page = tuple(_row(each) for each in found[:limit])
    last = page[-1] if page and len(found) > limit else None
    return Page(page, None if last is None else f"{last.updated_at}:{last.key.session}")


def glance(db: Database, owner: Owner, since: int, limit: int) -> Glance:
    found = db.of_owner(owner)

    def place(session: SessionRecord) -> tuple[int, int, str]:
        waits = session.status == "waiting"
        return _ORDER[session.status], session.updated_at if waits else -session.updated_at, session.key.session

    return Glance(
        waiting=sum(each.status == "waiting" for each in found),
        running=sum(each.status == "running" for each in found),
        queued=sum(each.status == "queued" for each in found),
        idle=sum(each.status == "idle" for each in found),
        idle_lately=sum(each.status == "idle" and each.updated_at >= since for each in found),
        first=tuple(_row(each) for each in sorted(found, key=place)[:limit]),
    )


def load(db: Database, key: Key, fold_version: int) -> Loaded | None:
    session = db.live(key)
    if session is None:
        return None
    kept = session.snapshot if session.snapshot and session.snapshot.fold_version == fold_version else None
    return Loaded(
        row=_row(session),
        snapshot=kept,
        events=events_after(db, key, kept.position if kept else Position(0), PAGE_EVENTS, PAGE_BYTES),
        inbox=tuple(found.item for found in session.waiting()),
        segments=_segments(session, Cursor()),
    )


def catch_up(db: Database, key: Key, cursor: Cursor, limit: int) -> CaughtUp | None:
    session = db.live(key)
    if session is None:
        return None
    events = events_after(db, key, cursor.position, limit, PAGE_BYTES)
    more = bool(events) and events[-1].position < len(session.events)
    return CaughtUp(
        events=events,
        segments=() if more else _segments(session, cursor),
        requests=tuple(session.open_requests()),
        inbox=tuple(found.item for found in session.waiting()),
        row=_row(session),
        more=more,
    )


def events_after(
    db: Database, key: Key, position: Position, limit: int, max_bytes: int | None = None
) -> tuple[Event, ...]:
    session = db.live(key)
    if session is None:
        return ()
    sizes = itertools.accumulate(each.size for each in session.written[position : position + limit])
    fitting = limit if max_bytes is None else max(1, sum(size <= max_bytes for size in sizes))
    return tuple(session.events[position : position + min(limit, fitting)])


def is_small(session: SessionRecord, loaded: Loaded) -> bool:
    """Whether the session is small enough to be read along with a claim."""
    if loaded.read_up_to < loaded.row.head or len(loaded.events) > SMALL_EVENTS:
        return False
    events = sum(each.size for each in session.written[loaded.row.head - len(loaded.events) :])
    items = sum(len(codec.encode_item(item.item)) for item in loaded.inbox)
    return events + items + (len(loaded.snapshot.state) if loaded.snapshot else 0) <= SMALL_BYTES


def turn_start(db: Database, key: Key) -> Position | None:
    session = db.live(key)
    found = session.events if session is not None else ()
    return next((event.position for event in reversed(found) if isinstance(event.body, TurnStarted)), None)


def _segments(session: SessionRecord, seen: Cursor) -> tuple[Segment, ...]:
    found = [each for each in session.segments if _is_unseen(each, seen)]
    return tuple(sorted(found, key=lambda each: (each.message_id, each.attempt, each.block, each.offset)))


def _is_unseen(segment: Segment, seen: Cursor) -> bool:
    if segment.message_id != seen.message_id or segment.block > seen.block:
        return True
    size = len(segment.text.encode())
    return segment.block == seen.block and (
        segment.offset + size > seen.offset or (size == 0 and segment.offset >= seen.offset)
    )


def tails(db: Database, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
    found = {key: db.sessions.get(key) for key in keys}
    return {key: (Fence(-1), 0) if each is None else (each.fence, each.tail) for key, each in found.items()}


def ledger(db: Database, owner: Owner, session: SessionId | None) -> tuple[LedgerEntry, ...]:
    found = [
        (entry.time, key.session, entry.message_id, entry.attempt, entry)
        for (key, _, _), entry in db.ledger.items()
        if key.owner == owner and session in (None, key.session)
    ]
    return tuple(entry for *_, entry in sorted(found, key=lambda each: each[:4]))
