"""The text index, as the other stores keep it: behind the log, and brought up to date a part at a time."""

from collections.abc import Sequence

from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, Position, ToolCallId
from holdfast.store.text_index import BATCH_BYTES, BATCH_EVENTS, Hit, IndexStep, hit_of, query_tokens, step_of
from proof.simulation.memory.reading import events_after
from proof.simulation.memory.tables import Database, SessionRecord


def behind(db: Database, owner: Owner, limit: int) -> list[Key]:
    found = [each for each in db.of_owner(owner) if each.indexed < len(each.events)]
    newest = sorted(found, key=lambda each: (-each.updated_at, each.key.session))
    return [each.key for each in newest[:limit]]


def next_steps(db: Database, keys: Sequence[Key]) -> tuple[list[IndexStep], list[Key]]:
    steps: list[IndexStep] = []
    left: list[Key] = []
    events, size = BATCH_EVENTS, BATCH_BYTES
    for key in keys:
        session = db.live(key)
        if session is None or session.indexed >= len(session.events):
            continue
        if events <= 0 or size <= 0:
            left.append(key)
            continue
        step = step_of(key, session.indexed, events_after(db, key, session.indexed, events, size))
        events -= step.up_to - step.after
        size -= step.size
        steps.append(step)
        if step.up_to < len(session.events):
            left.append(key)
    return steps, left


def write(db: Database, steps: Sequence[IndexStep]) -> tuple[list[Key], str | None]:
    moved = [step.key for step in steps if not _write_step(db, step)]
    return moved, "passages" if len(moved) < len(steps) else None


def _write_step(db: Database, step: IndexStep) -> bool:
    session = db.live(step.key)
    if session is None or session.indexed != step.after:
        return False
    session.indexed = step.up_to
    for kept, before in step.undone:
        for position in [each for each in session.passages if kept < each < before]:
            del session.passages[position]
    session.passages.update({entry.position: entry for entry in step.entries})
    return True


def mentions(session: SessionRecord, tokens: Sequence[str]) -> bool:
    """Whether one message has all of the words."""
    return any(not entry.tool_call_id and _has(entry.tokens, tokens) for entry in session.passages.values())


def _has(entry: Sequence[str], tokens: Sequence[str]) -> bool:
    return bool(tokens) and all(any(each.startswith(token) for each in entry) for token in tokens)


def search_log(db: Database, key: Key, query: str, limit: int, before: Position | None) -> tuple[Hit, ...]:
    session, tokens = db.live(key), query_tokens(key.owner, query)
    entries = session.passages.values() if session is not None else ()
    found = [
        each.position for each in entries if _has(each.tokens, tokens) and (before is None or each.position < before)
    ]
    hits = [hit_of(_event(db, key, position), query) for position in sorted(found, reverse=True)[:limit]]
    return tuple(hit for hit in hits if hit is not None)


def passages(db: Database, key: Key, first: Position, last: Position, limit: int) -> tuple[Event, ...]:
    session = db.live(key)
    found = sorted(session.passages) if session is not None else []
    return tuple([_event(db, key, position) for position in found if first <= position <= last][:limit])


def tool_result(db: Database, key: Key, tool_call_id: ToolCallId) -> Event | None:
    session = db.live(key)
    entries = session.passages.values() if session is not None else ()
    found = [each.position for each in entries if tool_call_id and each.tool_call_id == tool_call_id]
    return _event(db, key, max(found)) if found else None


def _event(db: Database, key: Key, position: Position) -> Event:
    return events_after(db, key, Position(position - 1), 1)[0]
