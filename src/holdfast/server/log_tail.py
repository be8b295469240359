"""A session's log read from its end, without the events that a rewind took back: only as much as the caller wants."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position, TurnId
from holdfast.events.session import Truncated
from holdfast.events.turn import EndReason, StepStarted, TurnEnded, TurnStarted
from holdfast.store.log_pages import PAGE_BYTES
from holdfast.store.store import Store

WINDOW_EVENTS: Final = 200
"""Events per read; fewer where they exceed a page in bytes."""

LONG_PAGE_CHARACTERS: Final = 4_000_000
"""A page of messages that has more text than this ends with the message that exceeded it; that message may be as long
as a tool result can be."""


class LastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The latest turn of a session that no rewind took back."""

    turn_id: TurnId
    started: Position
    """The position of its `turn_started`."""
    first_step: Position | None
    """The position of its first step: before it are the messages that the turn answers, after it the answer."""
    ended: Position | None
    ended_at: int | None
    """None: the turn is unfinished."""
    reason: EndReason | None = None
    """None: the turn is unfinished, or a rewind took its end back."""


async def events_backwards(store: Store, key: Key, head: Position) -> AsyncGenerator[Event, None]:
    """The events from the head to the first, newest first, without those that a rewind took back."""
    end, kept, window = head, head, WINDOW_EVENTS
    while end > 0:
        start = Position(max(0, end - window))
        events = await store.events_after(key, start, limit=end - start, max_bytes=PAGE_BYTES)
        if events and len(events) < end - start:  # They are large: fewer at a time.
            window = max(1, window // 4)
            continue
        window = min(2 * window, WINDOW_EVENTS)
        for event in reversed(events):
            if event.position <= kept:
                yield event
            if isinstance(event.body, Truncated):
                # A rewind that was itself taken back still counts: the events that it took back stay away.
                kept = min(kept, event.body.kept)
        end = start


async def last_turn(store: Store, key: Key) -> LastTurn | None:
    """The session's latest turn. None: it has no turn yet, or there is no such session."""
    row = await store.row(key)
    if row is None:
        return None
    first_step: Position | None = None
    ended: Event | None = None
    async with aclosing(events_backwards(store, key, row.head)) as events:
        async for event in events:
            match event.body:
                case TurnEnded() if ended is None:
                    ended = event
                case StepStarted():
                    first_step = event.position
                case TurnStarted(turn_id=turn_id):
                    if ended is None and row.turn_id != turn_id:
                        ended = event  # The turn is over: a rewind took its end back.
                    return LastTurn(
                        turn_id=turn_id,
                        started=event.position,
                        first_step=first_step,
                        ended=ended.position if ended else None,
                        ended_at=ended.time if ended else None,
                        reason=ended.body.reason if ended and isinstance(ended.body, TurnEnded) else None,
                    )
                case _:
                    pass
    return None
