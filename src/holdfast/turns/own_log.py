"""The log of a held session, as its tools may read it."""

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position, ToolCallId
from holdfast.events.tool import ToolCompleted
from holdfast.store.store import Store
from holdfast.store.text_index import Hit


class SessionLog:
    """Finds and reads passages of one session, by the store's text index."""

    def __init__(self, store: Store, key: Key, seed: str) -> None:
        self._store = store
        self._key = key
        self.seed = seed

    async def search(self, query: str, *, limit: int, before: Position | None) -> tuple[Hit, ...]:
        return await self._store.search_log(self._key, query, limit=limit, before=before)

    async def passages(self, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        return await self._store.passages(self._key, first, last, limit=limit)

    async def whole_output(self, tool_call_id: str) -> str | None:
        """The whole content of the last result with this id; None if there is none."""
        event = await self._store.tool_result(self._key, ToolCallId(tool_call_id))
        return event.body.content if event is not None and isinstance(event.body, ToolCompleted) else None
