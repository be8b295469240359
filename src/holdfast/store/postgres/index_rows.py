"""The rows of the text index: the next steps of logs, their writing, and the passages that are found."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, Position, SessionId, ToolCallId
from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Link
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

_PAST_THE_END: Final = (1 << 63) - 1

log = logging.getLogger(__name__)


async def behind(db: Link, owner: Owner, limit: int) -> list[Key]:
    """The owner's sessions whose index is behind their log, the newest first."""
    return [Key(owner, SessionId(id)) for (id,) in await db.rows("behind", owner, limit)]


async def next_steps(db: Link, keys: Sequence[Key]) -> tuple[list[IndexStep], list[Key]]:
    """The next part of what is to be indexed of these sessions, and the sessions that need more than that."""
    steps: list[IndexStep] = []
    left: list[Key] = []
    events, size = BATCH_EVENTS, BATCH_BYTES
    of = [key.owner for key in keys], [key.session for key in keys]
    for number, mark, head in await db.rows("index_marks", *of):
        key = keys[number - 1]
        if events <= 0 or size <= 0:
            left.append(key)
            continue
        try:
            page = await rows.events_after(db, key, mark, events, size)
            step = await asyncio.to_thread(step_of, key, mark, page)
        except msgspec.MsgspecError as error:
            log.warning(UNREADABLE, key.session, mark, error)
            continue
        events -= len(page)
        size -= step.size
        steps.append(step)
        if step.up_to < head:
            left.append(key)
    return steps, left


async def write(db: Link, steps: Sequence[IndexStep]) -> tuple[list[Key], str | None]:
    """Write each step whose mark nothing else moved. Returns the sessions whose mark something moved."""
    moved = []
    for step in sorted(steps, key=lambda step: step.key):  # Two processes lock the same marks in the same order.
        if not await _write_step(db, step):
            moved.append(step.key)
    return moved, "passages" if len(moved) < len(steps) else None


async def _write_step(db: Link, step: IndexStep) -> bool:
    of = (step.key.owner, step.key.session)
    if await db.row("move_index_mark", *of, step.after, step.up_to) is None:
        return False
    for kept, before in step.undone:
        await db.run("unindex", *of, kept, before)
    if step.entries:
        positions = [entry.position for entry in step.entries]
        calls = [entry.tool_call_id for entry in step.entries]
        tokens = [" ".join(entry.tokens) for entry in step.entries]
        await db.run("index_passages", *of, positions, calls, tokens)
    return True


def matching(tokens: Sequence[str]) -> str:
    """The tokens as a tsquery. They are letters, digits and marks, so none can end its quotes."""
    return " & ".join(f"'{token}':*" for token in tokens)


async def search_log(db: Link, key: Key, query: str, limit: int, before: Position | None) -> tuple[Hit, ...]:
    tokens = query_tokens(key.owner, query)
    if not tokens:
        return ()
    last = _PAST_THE_END if before is None else before
    found = await db.rows("search_log", key.owner, key.session, matching(tokens), last, limit)
    hits = [hit_of(await _event(db, key, position), query) for (position,) in found]
    return tuple(hit for hit in hits if hit is not None)


async def passages(db: Link, key: Key, first: Position, last: Position, limit: int) -> tuple[Event, ...]:
    found = await db.rows("passages", key.owner, key.session, first, last, limit)
    return tuple([await _event(db, key, position) for (position,) in found])


async def tool_result(db: Link, key: Key, tool_call_id: ToolCallId) -> Event | None:
    found = await db.row("tool_result", key.owner, key.session, tool_call_id)
    return None if found is None else await _event(db, key, found[0])


async def _event(db: Link, key: Key, position: int) -> Event:
    (event,) = await rows.events_after(db, key, Position(position - 1), 1)
    return event
