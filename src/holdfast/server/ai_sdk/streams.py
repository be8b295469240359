"""Streams of chunks about a turn: a leg, the leg of a message, or the whole turn."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.inbox import Message
from holdfast.live.live import Changed, Subscription
from holdfast.protocol.message import Returned
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.server.ai_sdk.leg import Leg, TurnFinder, WholeTurn
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.errors import NotFound
from holdfast.server.log_lookup import find_message
from holdfast.server.operations import Operations
from holdfast.server.operations.messages import returned
from holdfast.server.reader import Reader, Reading
from holdfast.store.store import Cursor

ChunkBatches = AsyncGenerator[list[UiChunk], None]


async def frames(batches: ChunkBatches | None = None, *, first: Iterable[UiChunk] = ()) -> AsyncGenerator[bytes, None]:
    """A stream on the wire: the first chunks, then the batches, then the end mark."""
    for frame in chunks.frames(first):
        yield frame
    if batches is not None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    for frame in chunks.frames(batch):
                        yield frame
        except NotFound:
            for frame in chunks.frames([chunks.ErrorChunk("This session was deleted.")]):
                yield frame
    yield chunks.DONE


async def leg_chunks(operations: Operations, key: Key, leg: Leg, started: Position) -> ChunkBatches:
    """A leg of the turn that starts at `started`."""
    async with aclosing(_read(operations, key, started).batches()) as batches:
        async for batch in batches:
            yield leg.take(batch)
            if leg.is_over:
                return


async def message_leg_chunks(
    operations: Operations,
    key: Key,
    leg: Leg,
    message_id: MessageId,
    *,
    item_key: str,
    head: Position,
    heard_since: Subscription | None = None,
) -> ChunkBatches:
    """The leg of the message's turn. No event of that turn was in the log when the log ended at `head`."""
    finder = TurnFinder(message_id)
    async with aclosing(operations.read(key, Cursor(head), heard_since=heard_since).batches()) as batches:
        async for batch in batches:
            of_turn = finder.take(batch)
            if finder.came_late:
                break
            if finder.is_found:
                yield leg.take(of_turn)
            elif any(map(_may_remove, batch)) and (removed := await _removed_chunk(operations, key, item_key)):
                yield [removed]
                return
            if leg.is_over:
                return
    if finder.came_late:
        async with aclosing(_joined_turn_chunks(operations, key, leg, message_id)) as joined:
            async for chunk_batch in joined:
                yield chunk_batch


async def whole_turn_chunks(operations: Operations, key: Key, release: Release, started: Position) -> ChunkBatches:
    """The first turn that starts at `started` or later: all of it, up to its wait or its end."""
    turn = WholeTurn(UiProjection(release))
    reader = _read(operations, key, started)
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            yield turn.take(batch)
            if turn.is_over:
                return
            if turn.waits_for and await _waits(operations, key, turn):
                yield turn.pause()
                return
            if not turn.has_started and Changed in map(type, batch) and await _no_turn_follows(operations, key, reader):
                return


async def _joined_turn_chunks(operations: Operations, key: Key, leg: Leg, message_id: MessageId) -> ChunkBatches:
    """The leg of a turn that had begun when the message joined it."""
    row = await operations.session(key)
    found = await find_message(operations.store, key, row.head, message_id)
    if found is not None:
        async with aclosing(leg_chunks(operations, key, leg, found.started)) as batches:
            async for batch in batches:
                yield batch


def _read(operations: Operations, key: Key, started: Position) -> Reader:
    return operations.read(key, Cursor(Position(started - 1)))


def _may_remove(reading: Reading) -> bool:
    """Whether a waiting message may have been removed from the queue. A put alone removes nothing."""
    return isinstance(reading, Changed) and (reading.queue or (reading.tail is None and not reading.promoted))


async def _removed_chunk(operations: Operations, key: Key, item_key: str) -> UiChunk | None:
    """The chunk for the sender of a message that was removed from the queue before its turn; None: it was not."""
    receipt = await operations.store.receipt(key, item_key)
    if receipt is None or receipt.state in ("accepted", "promoted"):
        return None
    return returned_chunk((returned(receipt.item),) if isinstance(receipt.item, Message) else ())


def returned_chunk(messages: Sequence[Returned]) -> UiChunk:
    """Messages that were taken out of the queue, for their sender to show or to send again."""
    return chunks.DataReturnedChunk(
        {"texts": [message.text for message in messages], "messages": [_as_sent(message) for message in messages]}
    )


def _as_sent(message: Returned) -> dict[str, Any]:
    options = {
        "context": msgspec.to_builtins(message.context) if message.context else None,
        "mode": message.mode or None,
        "model": message.model,
        "thinking": message.thinking,
        "files": msgspec.to_builtins(message.files) or None,
    }
    more = {name: value for name, value in options.items() if value is not None}
    return {"messageId": message.message_id, "text": message.text, **more}


async def _waits(operations: Operations, key: Key, turn: WholeTurn) -> bool:
    """Whether all requests that the turn waits for are unanswered, also by answers that are still in the inbox."""
    unanswered = {request.request_id for request in await operations.requests(key)}
    return unanswered.issuperset(turn.waits_for)


async def _no_turn_follows(operations: Operations, key: Key, reader: Reader) -> bool:
    """Whether no turn starts after all: the waiting messages were removed from the queue."""
    row = await operations.session(key)
    return row.turn_id is None and row.waiting_messages == 0 and row.head == reader.cursor.position
