"""A session's log as a page, as a long poll, or as a stream of server-sent events.

Every event and every delta of the stream has a cursor as its id, and any process can continue from a cursor, also in
the middle of a message. A reader that reconnects with the last cursor misses nothing and gets nothing twice.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import Key, Position
from holdfast.events.message import UserMessage, without_opaque
from holdfast.live.live import Changed, Delta, Progress, WaitStatus
from holdfast.protocol.event import EventPage, EventView
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.reading import QueueChanged
from holdfast.server.cursor_text import MAX_CURSOR_CHARACTERS, format_cursor, parse_cursor
from holdfast.server.errors import NotFound
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response
from holdfast.server.operations import Operations
from holdfast.server.reader import Reading
from holdfast.server.views.queue import queued_views
from holdfast.store.log_pages import PAGE_BYTES
from holdfast.store.store import Cursor

MAX_WAIT_SECONDS: Final = 60

PIECE_BYTES: Final = 65_536


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[str, Meta(max_length=MAX_CURSOR_CHARACTERS)] = "0"
    """A position, or a cursor from an earlier response."""
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0
    """Seconds to wait for the next event if there is none."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 500


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/events",
    summary="The log as a page or a long poll; with `Accept: text/event-stream`, as a stream",
    query=EventQuery,
    result=EventPage,
    is_stream=True,
)
async def read(call: HttpCall) -> Response:
    query = call.query(EventQuery)
    await call.operations.session(call.key)
    if "text/event-stream" not in call.header("accept"):
        return json_response(await _page(call, query))
    cursor = parse_cursor(call.header("last-event-id") or query.after)
    return call.service.streams.respond(call.identity, _stream(call, cursor))


# A page


async def _page(call: HttpCall, query: EventQuery) -> EventPage:
    operations, key = call.operations, call.key
    position = parse_cursor(query.after).position
    events = await operations.store.events_after(key, position, limit=query.limit, max_bytes=PAGE_BYTES)
    if not events and query.wait:
        events = await _next_events(operations, key, position, query)
    last = events[-1].position if events else position
    return EventPage(events=tuple(event_view(event, call.shown) for event in events), cursor=str(last))


async def _next_events(operations: Operations, key: Key, position: Position, query: EventQuery) -> tuple[Event, ...]:
    readings = operations.read(key, Cursor(position)).follow()
    try:
        async with asyncio.timeout(query.wait), aclosing(readings):
            async for reading in readings:
                if isinstance(reading, Event):
                    break
    except TimeoutError:
        return ()
    return await operations.store.events_after(key, position, limit=query.limit, max_bytes=PAGE_BYTES)


# A stream


async def _stream(call: HttpCall, cursor: Cursor) -> AsyncGenerator[bytes, None]:
    """The frames of the stream: events that were committed together are sent together."""
    operations, key = call.operations, call.key
    yield b"retry: 1000\n\n"
    position, queue = cursor.position, None
    try:
        async with aclosing(operations.read(key, cursor).batches()) as batches:
            async for batch in batches:
                frames = b""
                for frames in _joined(_frames_of(batch, position, call.shown)):
                    yield frames
                position = max((found.position for found in batch if isinstance(found, Event)), default=position)
                if any(isinstance(found, Changed) for found in batch):
                    waiting = queued_views(await operations.queue(key))
                    if waiting != queue:
                        yield _queue_frame(waiting)
                    queue = waiting
                batch.clear()  # Frees the batch while the stream waits for the next one.
    except NotFound:
        yield b"event: deleted\ndata: {}\n\n"


def _joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Several frames per piece, but no piece larger than the server should keep for a client that reads slowly."""
    piece = b""
    for frame in frames:
        piece += frame
        if len(piece) > PIECE_BYTES:
            yield piece
            piece = b""
    if piece:
        yield piece


def _frames_of(batch: Iterable[Reading], position: Position, shown: Callable[[Body], Body]) -> Iterable[bytes]:
    for found in batch:
        match found:
            case Event():
                position = found.position
                yield _frame(b"event", codec.to_bytes(event_view(found, shown)), str(position))
            case Delta():
                end = found.offset + len(found.text.encode())
                cursor = Cursor(position, found.message_id, found.block, end)
                yield _frame(b"delta", codec.to_bytes(found), format_cursor(cursor))
            case Progress():
                yield b"event: progress\ndata: " + codec.to_bytes(found) + b"\n\n"
            case WaitStatus():
                yield b"event: status\ndata: " + codec.to_bytes(found) + b"\n\n"
            case Changed():
                pass  # The queue's frame follows the batch.


def _frame(kind: bytes, data: bytes, cursor: str) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (cursor.encode(), kind, data)


def _queue_frame(waiting: tuple[QueuedView, ...]) -> bytes:
    return b"event: queue\ndata: " + codec.to_bytes(QueueChanged(messages=waiting)) + b"\n\n"


def event_view(event: Event, shown: Callable[[Body], Body]) -> EventView:
    """The event as its reader may see it."""
    name, version, data = codec.encode(shown(_as_typed(event.body)))
    return EventView(
        position=event.position, id=event.id, time=event.time, type=name, version=version, data=msgspec.Raw(data)
    )


def _as_typed(body: Body) -> Body:
    """A message without the text that was added for the model, without the bounds of its sender, and without the opaque
    parts of its reasoning: readers get the words of the person and of the model."""
    if isinstance(body, UserMessage) and (body.added or body.model_text or body.bounds is not None):
        return msgspec.structs.replace(body, added="", model_text="", bounds=None)
    return without_opaque(body)
