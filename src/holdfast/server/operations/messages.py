"""Messages: sent into the inbox, sent in place of an earlier message, and looked up by their receipt."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

from holdfast.events import inbox
from holdfast.events.ids import FileId, Key, MessageId, Position, TurnId, may_be_chosen
from holdfast.events.inbox import InboxItem
from holdfast.events.message import Image, PageContext, UserMessage
from holdfast.events.role import RoleBounds
from holdfast.protocol.message import DeliveryChoice, Returned, Sent
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.log_tail import last_turn
from holdfast.server.operations.session_access import SessionAccess, check_size
from holdfast.server.operations.settings import check_model
from holdfast.server.views.files import message_files
from holdfast.session.bounds import Bounds
from holdfast.store.store import Accepted

GO_ON: Final = "Please go on."


class MessageVerbs(SessionAccess):
    async def send(
        self,
        key: Key,
        text: str,
        *,
        message_id: MessageId | None = None,
        delivery: DeliveryChoice = "steer",
        added: str = "",
        unattended: bool = False,
        images: tuple[Image, ...] = (),
        attachments: tuple[dict[str, Any], ...] = (),
        file_ids: Sequence[str] | None = None,
        agent_mode: str = "",
        model_text: str = "",
        context: PageContext | None = None,
        model: str | None = None,
        thinking: int | None = None,
        only_if_idle: bool = False,
        bounds: RoleBounds | None = None,
    ) -> Sent:
        """Accept a message; it is on disk when this returns. The same id again gives the same receipt, and never a
        second run. `model` and `thinking` (tokens, 0 is off) hold for the message's turn alone. `only_if_idle` refuses
        the message as the delivery `reject` does. `bounds` are those of the sender's role, for the promotion."""
        chosen_id = MessageId(self._new_id()) if message_id is None else message_id
        self.check_id("message", chosen_id)
        chosen_files = self._check_files(file_ids or ())
        check_text(text, self._bounds, has_files=bool(chosen_files))
        page = context.as_text() if context else ""
        check_size("What is added to a message", added + page, self._bounds.max_instructions_characters)
        if model is not None:
            check_model(model, self._bounds)
        check_images(images, self._bounds)
        check_size("What the model is told", model_text, self._bounds.max_message_characters)
        item = inbox.Message(
            message_id=chosen_id,
            text=text,
            model_text=model_text,
            delivery="enqueue" if delivery == "enqueue" else "steer",
            added=added,
            unattended=unattended,
            images=images,
            attachments=attachments,
            file_ids=chosen_files,
            agent_mode=agent_mode,
            context=context,
            model=model,
            thinking=thinking,
            bounds=bounds,
        )
        accepted = await self._put(
            key,
            item,
            f"message:{chosen_id}",
            only_if_idle=only_if_idle or delivery == "reject",
            stop_first=f"stop:before:{chosen_id}" if delivery == "interrupt" else None,
        )
        return _sent(chosen_id, accepted)

    async def go_on(
        self,
        key: Key,
        *,
        message_id: MessageId | None = None,
        unattended: bool = False,
        bounds: RoleBounds | None = None,
    ) -> Sent:
        """Ask the model to go on after a turn that ended with an error, also for want of money. Without a `message_id`
        the message has the id of that turn, so that two clients that ask at once send one message."""
        if message_id is not None:
            self.check_id("message", message_id)
        if message_id is None or await self.store.receipt(key, f"message:{message_id}") is None:
            await self.session(key)
            turn = await last_turn(self.store, key)
            if turn is None or turn.reason != "error":
                raise Conflict("nothing_to_continue", "The last turn of this session did not end with an error.")
            message_id = message_id or self._after(turn.turn_id)
        return await self.send(
            key, GO_ON, message_id=message_id, unattended=unattended, only_if_idle=True, bounds=bounds
        )

    def _after(self, turn_id: TurnId) -> MessageId:
        """The id of the message that goes on after a turn. An imported turn may have an id that is too long for it."""
        derived = f"continue:{turn_id}"
        is_usable = len(derived) <= self._bounds.max_id_characters and may_be_chosen(derived)
        return MessageId(derived if is_usable else self._new_id())

    async def check_turns(self, key: Key, message_id: MessageId) -> None:
        """Raise the error that `send` would raise if the message starts a turn too many: for records that are stored
        before the message. A message that was accepted before is not refused."""
        limit = self.store.limits.in_flight_of(key.owner)
        row = await self.store.row(key) if limit is not None else None
        if limit is None or (row is not None and row.status != "idle"):
            return
        turns = await self.store.turns(key.owner)
        if turns.in_flight >= limit and await self.store.receipt(key, f"message:{message_id}") is None:
            raise Conflict("too_many_turns", turns.refusal())

    async def send_instead(
        self,
        key: Key,
        said: UserMessage,
        *,
        replaces: Position,
        kept: Position,
        file_ids: Sequence[str] | None = None,
        bounds: RoleBounds | None = None,
    ) -> Sent:
        """Take back everything after `kept` and answer this message in its place: one item, promoted in one unit. A
        running turn is stopped first, and waiting messages are taken out of the queue and returned.

        `replaces` is the position of the message that is taken back. The same message again, until it is promoted,
        gets the same receipt; another message replaces the replacement. `file_ids` take the place of its files."""
        self.check_id("message", said.message_id)
        chosen_files = self._check_files([file.file_id for file in said.files] if file_ids is None else file_ids)
        check_text(said.content, self._bounds, has_files=bool(chosen_files))
        item = inbox.Message(
            message_id=said.message_id,
            text=said.content,
            delivery="enqueue",
            model_text=said.model_text,
            added=said.added,
            images=said.images,
            attachments=said.attachments,
            file_ids=chosen_files,
            agent_mode=said.agent_mode,
            model=said.model,
            thinking=said.thinking,
            rewinds_to=kept,
            bounds=bounds,
        )
        for attempt in itertools.count():
            item_key = f"instead:{said.message_id}@{replaces}.{attempt}"
            receipt = await self.store.receipt(key, item_key)
            if receipt is not None and (not _is_same(receipt.item, item) or receipt.state in ("removed", "refused")):
                continue  # The key belongs to a replacement that was removed, or that this one removes.
            try:
                accepted = await self._put(key, item, item_key, stop_first=f"stop:before:{item_key}")
            except Conflict as error:
                if error.code != "id_reused":
                    raise
                continue  # Another replacement took the key in between.
            return _sent(said.message_id, accepted)
        raise AssertionError("one of endless keys is free")

    def _check_files(self, file_ids: Sequence[str]) -> tuple[FileId, ...]:
        limit = self._bounds.max_message_files
        if len(file_ids) > limit:
            raise Invalid("too_many_message_files", f"A message has at most {limit} files; this has {len(file_ids)}.")
        for file_id in file_ids:
            self.check_id("file", file_id)
        return tuple(map(FileId, file_ids))

    async def receipt(self, key: Key, message_id: MessageId) -> Sent:
        item = await self.store.receipt(key, f"message:{message_id}")
        if item is None:
            raise NotFound("message_not_found", f"There is no message {message_id} in this session.")
        return _sent(message_id, Accepted(item, duplicate=True))


def _is_same(stored: inbox.Item | inbox.UnknownItem, sent: inbox.Message) -> bool:
    return isinstance(stored, inbox.Message) and stored.says_the_same(sent)


def returned(message: inbox.Message) -> Returned:
    """A message as its sender gets it back."""
    return Returned(
        message_id=message.message_id,
        text=message.text,
        context=message.context,
        mode=message.agent_mode,
        model=message.model,
        thinking=message.thinking,
        files=message_files(message.files),
    )


def returned_messages(items: tuple[InboxItem, ...]) -> tuple[Returned, ...]:
    return tuple(returned(item.item) for item in items if isinstance(item.item, inbox.Message))


def returned_texts(items: tuple[InboxItem, ...]) -> tuple[str, ...]:
    return tuple(item.item.text for item in items if isinstance(item.item, inbox.Message))


def check_text(text: str, bounds: Bounds, *, has_files: bool = False) -> None:
    if not text.strip() and not has_files:
        raise Invalid("message_empty", "A message needs some text.")
    if len(text) > bounds.max_message_characters:
        limit = bounds.max_message_characters
        raise Invalid("message_too_long", f"A message has at most {limit:,} characters; this has {len(text):,}.")


def check_images(images: Sequence[Image], bounds: Bounds) -> None:
    size, limit = sum(len(image.data) for image in images), bounds.max_attachment_bytes
    if size > limit:
        raise Invalid("attachment_too_large", f"Pictures have at most {limit:,} bytes together; these {size:,}.")


def _sent(message_id: MessageId, accepted: Accepted) -> Sent:
    return Sent(
        message_id=message_id,
        item_key=accepted.item.key,
        state=accepted.item.state,
        delivery=accepted.item.outcome,
        duplicate=accepted.duplicate,
        while_running=accepted.item.while_running,
        waits_for_slot=accepted.waits_for_slot,
        head=None if accepted.duplicate else accepted.head,
        found_idle=accepted.found_idle,
        returned=returned_texts(accepted.removed),
        returned_messages=returned_messages(accepted.removed),
    )
