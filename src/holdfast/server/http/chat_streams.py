"""What is read of a session, told as the chunks of one answer until the answer's end."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.inbox import Message
from holdfast.live.live import Changed, Subscription
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import Chunk
from holdfast.server.ai_sdk.projection import Projection
from holdfast.server.ai_sdk.telling import Finding, Leg, Whole
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.errors import NotFound
from holdfast.server.http.finding import find_message
from holdfast.server.operations import Operations, Returned
from holdfast.server.operations.queue import returned
from holdfast.server.reader import Reader, Reading
from holdfast.store.store import Cursor

Told = AsyncGenerator[list[Chunk], None]


async def frames(told: Told | None = None, *, first: Iterable[Chunk] = ()) -> AsyncGenerator[bytes, None]:
    """An answer on the wire: what is said before anything else, and what is told."""
    for said in chunks.frames(first):
        yield said
    if told is not None:
        try:
            async with aclosing(told):
                async for batch in told:
                    for frame in chunks.frames(batch):
                        yield frame
        except NotFound:
            for frame in chunks.frames([chunks.Error("This session was deleted.")]):
                yield frame
    yield chunks.DONE


async def tell_leg(operations: Operations, key: Key, leg: Leg, started: Position) -> Told:
    """A leg of the turn that starts there."""
    async with aclosing(_read(operations, key, started).batches()) as batches:
        async for batch in batches:
            yield leg.take(batch)
            if leg.is_over:
                return


async def tell_leg_of_message(
    operations: Operations,
    key: Key,
    leg: Leg,
    message_id: MessageId,
    *,
    item_key: str,
    head: Position,
    heard_since: Subscription | None = None,
) -> Told:
    """The leg of the turn that a message is in; nothing of that turn was in the log when it ended at `head`."""
    finding = Finding(message_id)
    async with aclosing(operations.read(key, Cursor(head), heard_since=heard_since).batches()) as batches:
        async for batch in batches:
            found = finding.take(batch)
            if finding.came_late:
                break
            if finding.is_found:
                yield leg.take(found)
            elif any(map(_may_take_out, batch)) and (taken_out := await _taken_out(operations, key, item_key)):
                yield [taken_out]
                return
            if leg.is_over:
                return
    if finding.came_late:
        async with aclosing(_tell_joined(operations, key, leg, message_id)) as told:
            async for chunk_batch in told:
                yield chunk_batch


async def tell_whole(operations: Operations, key: Key, release: Release, started: Position) -> Told:
    """The turn that starts there, or the next one that does: all of it, to where it waits or ends."""
    telling = Whole(Projection(release))
    reader = _read(operations, key, started)
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            yield telling.take(batch)
            if telling.is_over:
                return
            if telling.waits_for and await _waits(operations, key, telling):
                yield telling.pause()
                return
            if (
                not telling.has_started
                and Changed in map(type, batch)
                and await _nothing_comes(operations, key, reader)
            ):
                return


async def _tell_joined(operations: Operations, key: Key, leg: Leg, message_id: MessageId) -> Told:
    """The message joined a turn that had begun."""
    row = await operations.session(key)
    found = await find_message(operations.store, key, row.head, message_id)
    if found is not None:
        async with aclosing(tell_leg(operations, key, leg, found.started)) as told:
            async for batch in told:
                yield batch


def _read(operations: Operations, key: Key, started: Position) -> Reader:
    return operations.read(key, Cursor(Position(started - 1)))


def _may_take_out(reading: Reading) -> bool:
    """Whether a message that waited may have been taken out since. What was only put took nothing out."""
    return isinstance(reading, Changed) and (reading.queue or (reading.tail is None and not reading.promoted))


async def _taken_out(operations: Operations, key: Key, item_key: str) -> Chunk | None:
    """What its sender is told of a message that was taken out of the queue before its turn came."""
    receipt = await operations.store.receipt(key, item_key)
    if receipt is None or receipt.state in ("accepted", "promoted"):
        return None
    return returned_chunk((returned(receipt.item),) if isinstance(receipt.item, Message) else ())


def returned_chunk(messages: Sequence[Returned]) -> Chunk:
    """Messages that were taken out of the queue, for whoever sent them: to be shown, or sent again as they were."""
    return chunks.DataReturned(
        {"texts": [found.text for found in messages], "messages": [_as_sent(found) for found in messages]}
    )


def _as_sent(found: Returned) -> dict[str, Any]:
    given = {
        "context": msgspec.to_builtins(found.context) if found.context else None,
        "mode": found.mode or None,
        "model": found.model,
        "thinking": found.thinking,
    }
    more = {name: value for name, value in given.items() if value is not None}
    return {"messageId": found.message_id, "text": found.text, **more}


async def _waits(operations: Operations, key: Key, telling: Whole) -> bool:
    """Whether nothing that the turn waits for has been answered, not even what is only in the inbox yet."""
    unanswered = {found.request_id for found in await operations.requests(key)}
    return unanswered.issuperset(telling.waits_for)


async def _nothing_comes(operations: Operations, key: Key, reader: Reader) -> bool:
    """Whether the turn that was to start will not: what waited for it was taken out of the queue."""
    row = await operations.session(key)
    return row.turn_id is None and row.waiting_messages == 0 and row.head == reader.cursor.position
