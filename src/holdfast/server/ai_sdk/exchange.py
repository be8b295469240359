"""One request of an AI SDK client to a session, from its intent to the stream that answers it.

Everything that a request stores is on disk before its stream begins. The same request again stores nothing twice, and
gets the same stream.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.message import PageContext, UserMessage
from holdfast.events.role import RoleBounds
from holdfast.live.live import Subscription
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.answers import apply_answers
from holdfast.server.ai_sdk.bodies import QueuedNotice
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.server.ai_sdk.intent import ChatText, Intent, Regeneration, TurnAnswers
from holdfast.server.ai_sdk.leg import Leg
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.streams import ChunkBatches, leg_chunks, message_leg_chunks, returned_chunk
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.errors import Conflict, NotFound
from holdfast.server.log_lookup import FoundMessage, find_message, find_turn, replaced_turn
from holdfast.server.message_options import MessageChoice
from holdfast.server.operations import Operations


class Send(Protocol):
    """Sends a message to the exchange's session, within the caller's rate."""

    async def __call__(
        self,
        text: str,
        *,
        message_id: MessageId,
        delivery: DeliveryChoice,
        context: PageContext | None,
        model: str | None,
        thinking: int | None,
        agent_mode: str,
        file_ids: Sequence[str] | None,
    ) -> Sent: ...


class ChatAnswer(NamedTuple):
    """A stream of chunks, or the notice that the message waits for its turn."""

    batches: ChunkBatches | None = None
    first: tuple[UiChunk, ...] = ()
    """Chunks before the batches."""
    queued: QueuedNotice | None = None
    subscription: Subscription | None = None
    """To be closed when the answer was sent, or could not be."""


class Exchange:
    """`choose` checks the options of the message; it is called only for an intent that starts a turn."""

    def __init__(
        self,
        operations: Operations,
        key: Key,
        *,
        release: Release,
        delivery: DeliveryChoice,
        send: Send,
        choose: Callable[[], Awaitable[MessageChoice]],
        answered_by: str,
        bounds: RoleBounds | None,
        max_waiting_messages: int,
    ) -> None:
        self._operations = operations
        self._store = operations.store
        self._key = key
        self._release = release
        self._delivery = delivery
        self._send_message = send
        self._choose = choose
        self._answered_by = answered_by
        self._bounds = bounds
        self._max_waiting_messages = max_waiting_messages

    async def answer(self, intent: Intent) -> ChatAnswer:
        match intent:
            case ChatText(is_edit=True):
                return await self._edit(intent)
            case ChatText():
                return await self._send(intent)
            case Regeneration():
                return await self._regenerate(intent)
            case TurnAnswers():
                return await self._continue(intent)

    # Messages

    async def _send(self, message: ChatText) -> ChatAnswer:
        """Subscribe before the message is stored: then the stream hears everything that comes of it, and need not
        catch up from the store."""
        subscription = self._operations.live.subscribe(self._key)
        try:
            answer = await self._send_heard(message, subscription)
        except BaseException:
            subscription.close()
            raise
        return answer._replace(subscription=subscription)

    async def _send_heard(self, message: ChatText, subscription: Subscription) -> ChatAnswer:
        choice = await self._choose()
        sent = await self._send_message(
            message.text,
            message_id=MessageId(message.message_id),
            delivery=self._delivery,
            **choice.as_arguments(),
        )
        head = sent.head
        if head is None:
            head = (await self._operations.session(self._key)).head
            if found := await find_message(self._store, self._key, head, sent.message_id):
                if found.said.content != message.text:
                    raise Conflict("message_replaced", "This message was edited since. Send the new words.")
                if found.said.delivery != "steering":
                    return self._leg_of(found)
        if sent.state in ("removed", "refused"):
            raise Conflict("message_removed", "This message was taken out of the queue. Send it under another id.")
        if sent.waits_for_slot or (sent.while_running and self._delivery != "interrupt"):
            return await self._queued(sent)
        return self._leg_of_sent(sent, head, heard_since=subscription if sent.found_idle else None)

    async def _edit(self, message: ChatText) -> ChatAnswer:
        row = await self._operations.session(self._key)
        found = await self._find(message.message_id)
        if found is None:
            return await self._edit_queued(message)
        if found.is_last and found.said.content == message.text:
            return self._leg_of(found)
        choice = await self._choose()
        said = _with_choice(
            UserMessage(
                message_id=found.said.message_id,
                turn_id=found.said.turn_id,
                content=message.text,
                delivery="idle",
                added=found.said.added,
                attachments=found.said.attachments,
                images=found.said.images,
                agent_mode=found.said.agent_mode,
                model=found.said.model,
                thinking=found.said.thinking,
                files=found.said.files,
            ),
            choice,
        )
        return await self._send_instead(said, found, row.head, file_ids=choice.file_ids)

    async def _edit_queued(self, message: ChatText) -> ChatAnswer:
        """Edit a message that still waits; a message that was never accepted is sent as a new one."""
        try:
            message_id = MessageId(message.message_id)
            await self._operations.edit_queued(self._key, message_id, message.text, bounds=self._bounds)
            sent = await self._operations.receipt(self._key, MessageId(message.message_id))
        except NotFound:
            return await self._send(message)
        return await self._queued(sent)

    async def _regenerate(self, regeneration: Regeneration) -> ChatAnswer:
        row = await self._operations.session(self._key)
        found = await self._find(regeneration.message_id)
        if found is None:
            raise NotFound("message_not_found", f"There is no message {regeneration.message_id} in this session.")
        replaces_other = regeneration.answer_id not in (None, found.said.turn_id)
        if replaces_other and found.is_last and await self._turn_replaced_by(found) == regeneration.answer_id:
            return self._leg_of(found)  # Already regenerated: this is the same request once more.
        said = _with_choice(found.said, await self._choose())
        return await self._send_instead(said, found, row.head)

    async def _turn_replaced_by(self, found: FoundMessage) -> str | None:
        return await replaced_turn(self._store, self._key, found.started)

    async def _send_instead(
        self, said: UserMessage, found: FoundMessage, head: Position, *, file_ids: Sequence[str] | None = None
    ) -> ChatAnswer:
        sent = await self._operations.send_instead(
            self._key, said, replaces=found.position, kept=found.before, file_ids=file_ids, bounds=self._bounds
        )
        if sent.waits_for_slot and not sent.returned:
            return await self._queued(sent)
        first = (returned_chunk(sent.returned_messages),) if sent.returned else ()
        return self._leg_of_sent(sent, head, first=first)

    async def _find(self, message_id: str) -> FoundMessage | None:
        row = await self._operations.session(self._key)
        return await find_message(self._store, self._key, row.head, message_id)

    # Answers to requests of a turn

    async def _continue(self, answers: TurnAnswers) -> ChatAnswer:
        row = await self._operations.session(self._key)
        turn = await find_turn(self._store, self._key, row.head, answers.turn_id)
        if turn is None:
            raise NotFound("message_not_found", f"There is no message {answers.turn_id} in this session.")
        applied = await apply_answers(self._operations, self._key, turn, answers, by=self._answered_by)
        elsewhere = {"requestIds": list(applied.elsewhere)}
        leg = Leg(UiProjection(self._release), after=applied.after, answered=applied.answered)
        return ChatAnswer(
            leg_chunks(self._operations, self._key, leg, turn.started),
            first=(chunks.DataAnsweredElsewhereChunk(elsewhere),) if applied.elsewhere else (),
        )

    # Streams

    def _leg_of(self, found: FoundMessage) -> ChatAnswer:
        leg = Leg(UiProjection(self._release))
        return ChatAnswer(leg_chunks(self._operations, self._key, leg, found.started))

    def _leg_of_sent(
        self,
        sent: Sent,
        head: Position,
        *,
        first: tuple[UiChunk, ...] = (),
        heard_since: Subscription | None = None,
    ) -> ChatAnswer:
        batches = message_leg_chunks(
            self._operations,
            self._key,
            Leg(UiProjection(self._release)),
            sent.message_id,
            item_key=sent.item_key,
            head=head,
            heard_since=heard_since,
        )
        return ChatAnswer(batches, first=first)

    async def _queued(self, sent: Sent) -> ChatAnswer:
        """The message was accepted, and other work comes before it."""
        row = await self._operations.session(self._key)
        return ChatAnswer(
            queued=QueuedNotice(
                message_id=sent.message_id,
                buffer_length=row.waiting_messages,
                max_buffer_length=self._max_waiting_messages,
                turn_in_flight=row.turn_id is not None,
            )
        )


def _with_choice(said: UserMessage, choice: MessageChoice) -> UserMessage:
    """A message that is sent once more: each option is the new choice, or else the earlier one."""
    return msgspec.structs.replace(
        said,
        added=choice.context.as_text() if choice.context else said.added,
        model=choice.model or said.model,
        thinking=said.thinking if choice.thinking is None else choice.thinking,
        agent_mode=choice.agent_mode or said.agent_mode,
    )
