"""Reads a session's log page by page: no read holds more than one page in memory, however long the log is and however
large its events are."""

from collections.abc import AsyncIterator
from typing import Final

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position
from holdfast.store.store import Loaded, Row, Store

PAGE_EVENTS: Final = 1_000
PAGE_BYTES: Final = 4 << 20
"""A single event may be larger: a tool result has up to 10 MB."""

SMALL_EVENTS: Final = 500
SMALL_BYTES: Final = 256 << 10
"""A session with no more than this to load is read along with its claim: that takes a millisecond or two, and any
process that can claim has the memory for it."""

NO_SNAPSHOT: Final = -1
"""A fold version that no snapshot has: a load with it starts at the first event."""


async def pages(store: Store, loaded: Loaded) -> AsyncIterator[tuple[Event, ...]]:
    """The events of a load, up to the head that the load found. They end early if the session is deleted meanwhile."""
    head, position = loaded.row.head, loaded.read_up_to
    yield loaded.events
    while position < head:
        page = await page_up_to(store, loaded.row.key, position, head)
        if not page:
            return
        position = page[-1].position
        yield page


async def page_up_to(store: Store, key: Key, position: Position, head: Position) -> tuple[Event, ...]:
    limit = min(PAGE_EVENTS, head - position)
    return await store.events_after(key, position, limit=limit, max_bytes=PAGE_BYTES)


async def whole_log(store: Store, key: Key) -> tuple[Row, tuple[Event, ...]] | None:
    """The row and all events of a session as of one moment; None: there is no such session."""
    loaded = await store.load(key, fold_version=NO_SNAPSHOT)
    if loaded is None:
        return None
    events = [event async for page in pages(store, loaded) for event in page]
    return loaded.row, tuple(events)
