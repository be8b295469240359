"""The queue: messages that wait for their turn; read, edited, removed and reordered before it."""

from collections.abc import Sequence

from holdfast.events import inbox
from holdfast.events.ids import Key, MessageId
from holdfast.events.inbox import InboxItem
from holdfast.events.role import RoleBounds
from holdfast.live.live import Changed
from holdfast.server.errors import Conflict, NotFound
from holdfast.server.operations.messages import check_text
from holdfast.server.operations.session_access import SessionAccess


class QueueVerbs(SessionAccess):
    async def queue(self, key: Key) -> tuple[InboxItem, ...]:
        """The waiting messages, in order."""
        await self.session(key)
        waiting = await self.store.waiting_items(key)
        return tuple(item for item in waiting if isinstance(item.item, inbox.Message))

    async def edit_queued(
        self, key: Key, message_id: MessageId, text: str, *, bounds: RoleBounds | None = None
    ) -> None:
        """`bounds` are those of the editor's role. A message keeps its model, so the role must allow that as well."""
        check_text(text, self._bounds)
        if bounds is not None:
            for waiting in await self.queue(key):
                found = waiting.item
                if isinstance(found, inbox.Message) and found.message_id == message_id:
                    await self._check_may_use(key, found.model, bounds)
        refused = await self.store.edit_item(key, f"message:{message_id}", text=text, bounds=bounds)
        if refused is not None and refused.code != "message_not_queued":
            raise Conflict(refused.code, refused.message)
        self._queue_changed(key, message_id, refused is None)

    async def remove_queued(self, key: Key, message_id: MessageId) -> None:
        self._queue_changed(key, message_id, await self.store.remove_item(key, f"message:{message_id}"))

    def _queue_changed(self, key: Key, message_id: MessageId, done: bool) -> None:
        if not done:
            raise NotFound("message_not_queued", f"The message {message_id} is not waiting (any more).")
        self.live.publish(key, Changed(queue=True))

    async def reorder_queue(self, key: Key, message_ids: Sequence[MessageId]) -> None:
        done = await self.store.reorder_items(key, [f"message:{message_id}" for message_id in message_ids])
        if not done:
            raise Conflict("queue_changed", "The queue is no longer what it was. Read it again, then reorder it.")
        self.live.publish(key, Changed(queue=True))
