"""Rewinds: let a conversation continue from an earlier position. The log keeps everything."""

from contextlib import aclosing

from holdfast.events import inbox
from holdfast.events.ids import Key, Position
from holdfast.events.inbox import InboxItem
from holdfast.server.errors import Conflict
from holdfast.server.operations.session_access import SessionAccess
from holdfast.store.store import Cursor


class RewindVerbs(SessionAccess):
    async def rewind(self, key: Key, kept: Position, *, rewind_id: str | None = None, stops_turn: bool = False) -> None:
        """Continue the conversation from `kept` as if nothing after it had been said. Returns when the session's holder
        has done so. The same id again gets the same receipt. `stops_turn` ends a running turn first and empties the
        queue, in the same transaction; otherwise an unfinished turn refuses the rewind."""
        chosen_id = self._new_id() if rewind_id is None else rewind_id
        self.check_id("rewind", chosen_id)
        item_key = f"rewind:{chosen_id}"
        position = (await self.session(key)).head
        stop_first = f"stop:before:{item_key}" if stops_turn else None
        accepted = await self._put(key, inbox.Rewind(rewind_id=chosen_id, kept=kept), item_key, stop_first=stop_first)
        receipt: InboxItem | None = accepted.item
        async with aclosing(self.read(key, Cursor(position)).follow()) as readings:
            while receipt is not None and receipt.state == "accepted":
                await anext(readings)
                receipt = await self.store.receipt(key, item_key)
        if receipt is None or receipt.state == "refused":
            raise Conflict("busy", "The session is busy. Wait until it is idle, then try again.")
