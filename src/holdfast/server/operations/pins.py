"""Pinned messages: the model keeps them word for word, whatever is compacted. Each change is a record in the log."""

from holdfast.events.compaction import MessagePinned
from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.message import UserMessage
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.log_lookup import find_said
from holdfast.server.operations.session_access import SessionAccess
from holdfast.server.operations.settings import CHANGE_TRIES
from holdfast.session.pins import refusal_of_pin
from holdfast.session.state import Person


class PinVerbs(SessionAccess):
    async def pin(self, key: Key, message_id: MessageId) -> None:
        """Pin a message that a person sent. A pinned message stays as it is."""
        for _ in range(CHANGE_TRIES):
            state = await self.whole_state(key)
            if message_id in state.pinned:
                return
            said, position = await self._said(key, message_id, state.head)
            text = said.model_text or said.content
            wanted = Person(position, text, said.added, said.images, message_id=message_id)
            if (refused := refusal_of_pin(state, wanted, self._bounds)) is not None:
                raise Conflict(refused.code, refused.message)
            record = MessagePinned(message_id=message_id, pinned=True, position=position, content=text)
            if await self._append(key, [record], supposes_head=state.head) is not None:
                return
        raise Conflict("changed_meanwhile", "The session kept changing while this was written. Try again.")

    async def unpin(self, key: Key, message_id: MessageId) -> None:
        """Let a compaction summarise the message again. A message that is not pinned stays as it is."""
        for _ in range(CHANGE_TRIES):
            state = await self.state(key)
            if message_id not in state.pinned:
                await self._said(key, message_id, state.head)
                return
            record = MessagePinned(message_id=message_id, pinned=False, position=Position(0))
            if await self._append(key, [record], supposes_head=state.head) is not None:
                return
        raise Conflict("changed_meanwhile", "The session kept changing while this was written. Try again.")

    async def _said(self, key: Key, message_id: MessageId, head: Position) -> tuple[UserMessage, Position]:
        found = await find_said(self.store, key, head, message_id)
        if found is None:
            raise NotFound("message_not_found", f"There is no message {message_id} in this conversation.")
        if not isinstance(found.body, UserMessage):
            raise Invalid("not_a_persons_message", "Only a message that a person sent can be pinned.")
        return found.body, found.position
