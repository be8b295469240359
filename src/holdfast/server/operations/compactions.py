"""Compactions on request: summarise the older part of a conversation now, or give up the compaction that is under way.

Both are items of the inbox: durable once accepted, and carried out by the session's holder.
"""

import asyncio
from contextlib import aclosing
from typing import Final

from holdfast.events import inbox
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.events.ids import CompactionId, Key, Position
from holdfast.events.inbox import InboxItem
from holdfast.live.live import Delta, Progress
from holdfast.protocol.compaction import Compacted, CompactionCancelled
from holdfast.server.errors import Conflict
from holdfast.server.log_lookup import find_compaction
from holdfast.server.operations.session_access import SessionAccess, check_size
from holdfast.store.store import Cursor

MAX_COMPACTION_INSTRUCTIONS: Final = 2_000
"""Characters that say what a summary should keep. They are read by the model as the words of a person."""

_REFUSALS: Final = {
    "nothing_to_compact": "There is nothing to summarise yet: the model is sent only the newest messages.",
    "compaction_under_way": "A compaction is under way already. Wait for its end, or cancel it first.",
}

REWOUND: Final = "The conversation was rewound before the summary was made."

FAILURES: Final = {
    "cancelled": "The compaction was cancelled.",
    "empty": "The model gave no summary.",
    "rewound": REWOUND,
}
"""Sentences for failures whose event has none."""


class CompactionVerbs(SessionAccess):
    async def compact(
        self, key: Key, *, instructions: str = "", compaction_id: str | None = None, wait_seconds: float = 0.0
    ) -> Compacted:
        """Summarise the older part of the conversation, whatever its size. The request is durable on return, and the
        same id again is the same compaction. Waits at most `wait_seconds` for its end; raises `Conflict` if the
        session's holder refused it by then."""
        chosen_id = CompactionId(self._new_id() if compaction_id is None else compaction_id)
        self.check_id("compaction", chosen_id)
        check_size("What a summary should keep", instructions, MAX_COMPACTION_INSTRUCTIONS)
        position = (await self.session(key)).head
        item = inbox.Compact(compaction_id=chosen_id, instructions=instructions.strip())
        accepted = await self._put(key, item, f"compact:{chosen_id}")
        if accepted.duplicate:
            found = await self._outcome(key, accepted.item)
            if found is not None:
                return found
        try:
            async with asyncio.timeout(wait_seconds):
                return await self._until_ended(key, chosen_id, position)
        except TimeoutError:
            receipt = await self.store.receipt(key, accepted.item.key)
            found = await self._outcome(key, receipt or accepted.item)
            is_begun = receipt is not None and receipt.state == "promoted"
            return found or Compacted(compaction_id=chosen_id, outcome="compacting" if is_begun else "accepted")

    async def cancel_compaction(
        self, key: Key, *, only_manual: bool = False, cancel_id: str | None = None, wait_seconds: float = 0.0
    ) -> CompactionCancelled:
        """Give up the compaction that is under way; with `only_manual`, only one that was asked for. The context stays
        as it was. Waits at most `wait_seconds` for the session's holder."""
        chosen_id = self._new_id() if cancel_id is None else cancel_id
        self.check_id("cancellation", chosen_id)
        item = inbox.CancelCompaction(cancel_id=chosen_id, only_manual=only_manual)
        position = (await self.session(key)).head
        accepted = await self._put(key, item, f"cancel_compaction:{chosen_id}")
        receipt = accepted.item
        try:
            async with asyncio.timeout(wait_seconds):
                receipt = await self._until_promoted(key, accepted.item, position)
        except TimeoutError:
            receipt = await self.store.receipt(key, accepted.item.key) or receipt
        match receipt.outcome:
            case "cancelled" | "nothing_to_cancel" as outcome if receipt.state == "promoted":
                return CompactionCancelled(outcome=outcome)
            case _:
                return CompactionCancelled(outcome="accepted")

    async def _outcome(self, key: Key, receipt: InboxItem) -> Compacted | None:
        """How the compaction of a receipt ended; None: not yet. Raises `Conflict` if it was refused."""
        assert isinstance(receipt.item, inbox.Compact)
        if receipt.state == "refused":
            raise _refused(receipt)
        if receipt.state != "promoted":
            return None
        compaction_id = receipt.item.compaction_id
        # The state is read before the log: an end that is written in between is found there, and is no rewind.
        under_way = (await self.state(key)).compaction
        found = await find_compaction(self.store, key, (await self.session(key)).head, compaction_id)
        if isinstance(found, CompactionEnded):
            return _compacted(found)
        if under_way is not None and under_way.compaction_id == compaction_id:
            return None
        return Compacted(compaction_id=compaction_id, outcome="failed", error="rewound", message=REWOUND)

    async def _until_ended(self, key: Key, compaction_id: CompactionId, position: Position) -> Compacted:
        is_promoted = False
        async with aclosing(self.read(key, Cursor(position)).follow()) as readings:
            async for reading in readings:
                if isinstance(reading, Delta | Progress):
                    continue
                ended = reading.body if isinstance(reading, Event) else None
                if isinstance(ended, CompactionEnded) and ended.compaction_id == compaction_id:
                    return _compacted(ended)
                if not is_promoted:
                    receipt = await self.store.receipt(key, f"compact:{compaction_id}")
                    is_promoted = receipt is not None and receipt.state == "promoted"
                    if receipt is not None and receipt.state == "refused":
                        raise _refused(receipt)
        raise AssertionError("a session is followed without end")

    async def _until_promoted(self, key: Key, receipt: InboxItem, position: Position) -> InboxItem:
        async with aclosing(self.read(key, Cursor(position)).follow()) as readings:
            async for reading in readings:
                if receipt.state != "accepted":
                    return receipt
                if not isinstance(reading, Delta | Progress):
                    receipt = await self.store.receipt(key, receipt.key) or receipt
        raise AssertionError("a session is followed without end")


def _refused(receipt: InboxItem) -> Conflict:
    return Conflict(receipt.outcome, _REFUSALS.get(receipt.outcome, "The compaction was refused."))


def _compacted(ended: CompactionEnded) -> Compacted:
    return Compacted(
        compaction_id=ended.compaction_id,
        outcome="compacted" if ended.success else "failed",
        tokens_before=ended.tokens_before,
        tokens_after=ended.tokens_after,
        removed=ended.removed,
        summary=ended.summary,
        error=ended.error,
        message=ended.message or ("" if ended.success else FAILURES.get(ended.error, "")),
    )
