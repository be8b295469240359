"""A session's log read from its end, without what a rewind took back: only as much of it as somebody wants is read."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position, TurnId
from holdfast.events.session import Truncated
from holdfast.events.turn import StepStarted, TurnEnded, TurnStarted
from holdfast.store.log_pages import PAGE_BYTES
from holdfast.store.store import Store

WINDOW_EVENTS: Final = 200
"""As many are read at once; fewer where they are more than a page in bytes."""


class LastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The latest turn of a session that no rewind took back."""

    turn_id: TurnId
    started: Position
    """Where its `turn_started` stands."""
    first_step: Position | None
    """Where its first step starts: before it stand the messages that it answers, behind it all that it says."""
    ended: Position | None
    ended_at: int | None
    """None: it is unfinished."""


async def backwards(store: Store, key: Key, head: Position) -> AsyncGenerator[Event, None]:
    """The events from the head to the first, newest first, without those that a rewind took back."""
    end, kept, window = head, head, WINDOW_EVENTS
    while end > 0:
        start = Position(max(0, end - window))
        found = await store.events_after(key, start, limit=end - start, max_bytes=PAGE_BYTES)
        if found and len(found) < end - start:  # They are large: fewer at a time.
            window = max(1, window // 4)
            continue
        window = min(2 * window, WINDOW_EVENTS)
        for event in reversed(found):
            if event.position <= kept:
                yield event
            if isinstance(event.body, Truncated):
                # One that was itself taken back still counts: what it took back stays away.
                kept = min(kept, event.body.kept)
        end = start


async def last_turn(store: Store, key: Key) -> LastTurn | None:
    """None: there was none yet, or there is no such session."""
    row = await store.row(key)
    if row is None:
        return None
    first_step: Position | None = None
    ended: Event | None = None
    async with aclosing(backwards(store, key, row.head)) as events:
        async for event in events:
            match event.body:
                case TurnEnded() if ended is None:
                    ended = event
                case StepStarted():
                    first_step = event.position
                case TurnStarted(turn_id=turn_id):
                    if ended is None and row.turn_id != turn_id:
                        ended = event  # It is over: a rewind took its end back.
                    return LastTurn(
                        turn_id=turn_id,
                        started=event.position,
                        first_step=first_step,
                        ended=ended.position if ended else None,
                        ended_at=ended.time if ended else None,
                    )
                case _:
                    pass
    return None
