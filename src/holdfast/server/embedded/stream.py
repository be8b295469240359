"""Reads a session of this process's database, with the readings that a client of a server gets."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.events.ids import Key
from holdfast.live.live import Changed
from holdfast.protocol.reading import QueueChanged, Reading
from holdfast.server.cursor_text import format_cursor, parse_cursor
from holdfast.server.operations import Operations
from holdfast.server.views.queue import queued_views


class EmbeddedStream:
    """A reader of one session. Its `cursor` may be stored, and any program may continue from it later."""

    def __init__(self, operations: Operations, key: Key, after: str) -> None:
        self._operations = operations
        self._key = key
        self._reader = operations.read(key, parse_cursor(after))

    @property
    def cursor(self) -> str:
        return format_cursor(self._reader.cursor)

    async def until_now(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then the end."""
        async for reading in self._reader.until_now():
            if not isinstance(reading, Changed):
                yield reading

    async def follow(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then every change, without end. Raises `NotFound` when the session is deleted."""
        async with aclosing(self._reader.follow()) as readings:
            async for reading in readings:
                if isinstance(reading, Changed):
                    waiting = await self._operations.store.waiting_items(self._key)
                    yield QueueChanged(messages=queued_views(waiting))
                else:
                    yield reading
