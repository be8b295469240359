"""Readers of a session: everything from a cursor on, then every change; live and later readers get the same.

A reader subscribes first, catches up from the store, then follows the hints and drops events before its cursor. A hint
that does not follow on the cursor (one was lost, or another process wrote) sends the reader back to the store.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from msgspec.structs import replace

from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.message import AssistantMessage, Block, ReasoningBlock, TextBlock, without_opaque
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Live, Lost, Progress, Subscription, WaitStatus
from holdfast.server.errors import NotFound
from holdfast.store.store import CaughtUp, Cursor, Segment, Store

PAGE_EVENTS = 500

Reading = Event | Delta | Progress | WaitStatus | Changed
"""Events of the log, deltas of the message in flight, progress of running tools, what is awaited while nothing comes,
and the hint that the inbox changed."""


class Reader:
    """Reads one session. Its `cursor` may be stored, and reading continued from it later, in any process."""

    def __init__(
        self,
        store: Store,
        live: Live,
        key: Key,
        cursor: Cursor | None = None,
        *,
        heard_since: Subscription | None = None,
    ) -> None:
        """`heard_since` is a subscription that began before any event after the cursor: with it, a reader that follows
        need not catch up from the store first."""
        self._heard_since = heard_since
        self._store = store
        self._live = live
        self._key = key
        self._position = cursor.position if cursor else Position(0)
        self._message_id = cursor.message_id if cursor else None
        self._block = cursor.block if cursor else 0
        self._offset = cursor.offset if cursor else 0

    @property
    def cursor(self) -> Cursor:
        return Cursor(self._position, self._message_id, self._block, self._offset)

    async def until_now(self) -> AsyncIterator[Reading]:
        """Everything up to now, and then the end."""
        while True:
            caught = await self._catch_up()
            for reading in self._from_store(caught):
                yield reading
            if not caught.more:
                return

    async def follow(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then every change, without end. Raises `NotFound` when the session is deleted."""
        subscription = self._heard_since or self._live.subscribe(self._key)
        try:
            readings: list[Reading] | None = None if self._heard_since is None else []
            while True:
                if readings is None:
                    async for reading in self.until_now():
                        yield reading
                    readings = [Changed()]
                for reading in readings:
                    yield reading
                readings = self._from_hint(await subscription.next())
        finally:
            subscription.close()

    async def batches(self) -> AsyncGenerator[list[Reading], None]:
        """Like `follow`, but readings that came together are yielded together, so that a surface can send them at once.
        The cursor is after the last yielded batch."""
        subscription = self._heard_since or self._live.subscribe(self._key)
        try:
            readings: list[Reading] | None = None if self._heard_since is None else []
            while True:
                while readings is None:
                    caught = await self._catch_up()
                    yield list(self._from_store(caught))
                    readings = None if caught.more else [Changed()]
                    del caught  # Frees the page while the reader waits for more.
                if readings:
                    yield readings
                readings = self._from_hint(await subscription.next())
        finally:
            subscription.close()

    async def _catch_up(self) -> CaughtUp:
        caught = await self._store.catch_up(self._key, self.cursor, limit=PAGE_EVENTS)
        if caught is None:
            raise NotFound("session_not_found", f"There is no session {self._key.session}.")
        return caught

    def _from_store(self, caught: CaughtUp) -> Iterator[Reading]:
        for event in caught.events:
            yield from self._event(event)
        for segment in caught.segments:
            yield from self._delta(_as_delta(segment))

    def _from_hint(self, hint: Hint) -> list[Reading] | None:
        """The readings that a hint adds, or None if it does not follow on the cursor."""
        match hint:
            case Progress() | WaitStatus() | Changed():
                return [hint]
            case Grown(deltas=deltas):
                if not self._fits(hint):
                    return None
                return [reading for delta in deltas for reading in self._delta(delta)]
            case Advanced(events=events):
                if events[0].position > self._position + 1:
                    return None
                return [reading for event in events for reading in self._event(event)]
            case Lost():
                return None

    def _fits(self, grown: Grown) -> bool:
        """Whether no event and no piece of the message is missing between the cursor and the hint."""
        same = grown.deltas[0].message_id == self._message_id
        read = (self._block, self._offset) if same else (0, 0)
        return grown.head == self._position and read >= grown.follows

    def _event(self, event: Event) -> Iterator[Reading]:
        if event.position <= self._position:
            return
        if isinstance(event.body, AssistantMessage):
            for delta in _rest_of(event.body):
                yield from self._delta(delta)
            self._message_id, self._block, self._offset = None, 0, 0
        self._position = event.position
        yield _shown(event)

    def _delta(self, delta: Delta) -> Iterator[Delta]:
        """The unread part of a delta; moves the cursor after it."""
        if delta.message_id != self._message_id:
            self._message_id, self._block, self._offset = delta.message_id, 0, 0
        if delta.block < self._block:
            return
        if delta.block > self._block:
            self._block, self._offset = delta.block, 0
        encoded = delta.text.encode()
        end = delta.offset + len(encoded)
        skip = self._offset - delta.offset
        if skip > 0 and end <= self._offset:
            return
        while skip > 0 and encoded[skip] & 0xC0 == 0x80:
            skip -= 1  # The cursor is in the middle of a character: yield the whole character.
        self._offset = end
        if skip > 0:
            text = encoded[skip:].decode()
            yield _delta(delta.message_id, delta.block, delta, self._offset - len(encoded[skip:]), text)
        elif delta.text or delta.offset == 0:
            yield delta


def _delta(message_id: MessageId, block: int, like: Delta, offset: int, text: str) -> Delta:
    return Delta(
        message_id=message_id,
        block=block,
        kind=like.kind,
        offset=offset,
        text=text,
        tool_call_id=like.tool_call_id,
        name=like.name,
    )


def _as_delta(segment: Segment) -> Delta:
    return Delta(
        message_id=segment.message_id,
        block=segment.block,
        kind=segment.kind,
        offset=segment.offset,
        text=segment.text,
        tool_call_id=segment.tool_call_id,
        name=segment.name,
    )


def as_read(event: Event) -> Iterator[Reading]:
    """The readings of an event for a reader that has read nothing of its message before."""
    if isinstance(event.body, AssistantMessage):
        yield from _rest_of(event.body)
    yield _shown(event)


def _shown(event: Event) -> Event:
    body = without_opaque(event.body)
    return event if body is event.body else replace(event, body=body)


def _rest_of(body: AssistantMessage) -> Iterator[Delta]:
    """A whole message as deltas, one for each block. The cursor drops the parts that were read before."""
    for number, block in enumerate(body.blocks):
        if isinstance(block, ReasoningBlock) and not block.text:
            continue  # Nothing of it was ever streamed: only its provider can read it.
        yield _block_delta(body.message_id, number, block)


def _block_delta(message_id: MessageId, number: int, block: Block) -> Delta:
    match block:
        case TextBlock(text=text):
            return Delta(message_id=message_id, block=number, kind="text", offset=0, text=text)
        case ReasoningBlock(text=text):
            return Delta(message_id=message_id, block=number, kind="reasoning", offset=0, text=text)
        case _:
            return Delta(
                message_id=message_id,
                block=number,
                kind="tool_call",
                offset=0,
                text=block.arguments,
                tool_call_id=block.tool_call_id,
                name=block.name,
            )
