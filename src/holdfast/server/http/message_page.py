"""Pages of a conversation, from its end: messages, tool results, and how turns ended.

A page is returned oldest first. It never begins between a call and the message that made the call, has something
visible if there is anything, and joins the next older page without a gap: its `before` names that page.
"""

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final

import msgspec

from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.events.message import AssistantMessage, Block, ReasoningBlock, TextBlock, UserMessage
from holdfast.events.session import SessionError, SessionInfo
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import StepStarted, TurnEnded
from holdfast.protocol.message import (
    BlockView,
    Ended,
    Failed,
    FromAssistant,
    FromCompaction,
    FromTool,
    FromUser,
    Info,
    MessageView,
    ReasoningView,
    TextView,
    ToolCallView,
)
from holdfast.server.log_tail import LONG_PAGE_CHARACTERS
from holdfast.server.views.files import message_files

MAX_EXTENDED: Final = 200
"""How many messages a page may have beyond the requested number, to have something visible. Beyond that a page is
extended only to the message that made the calls of its oldest step, so that no result is without its call."""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[MessageView, ...]
    before: int | None
    """The `before` of the next older page. None: this is the first page."""


async def page_of(events: AsyncIterator[Event], limit: int, *, pinned: Collection[str] = ()) -> MessagePage:
    """The last page of these events, which come newest first. `pinned` are the ids of the pinned messages."""
    growing = GrowingPage(limit)
    async for event in events:
        if isinstance(event.body, StepStarted):
            growing.note_step_start()
        message = view_of(event, pinned)
        if message is None:
            continue
        if growing.may_begin_here():
            return MessagePage(messages=tuple(reversed(growing.messages)), before=growing.messages[-1].position)
        growing.extend(message)
    return MessagePage(messages=tuple(reversed(growing.messages)), before=None)


class GrowingPage:
    """A page that is extended message by message, the newest first."""

    def __init__(self, limit: int) -> None:
        self.messages: list[MessageView] = []
        self._limit = limit
        self._size = 0
        self._has_visible = False
        self._without_owner: set[str] = set()
        """Calls whose results are on the page, while the message that made them is not yet."""

    def extend(self, message: MessageView) -> None:
        self.messages.append(message)
        self._size += _characters(message)
        self._has_visible = self._has_visible or _is_visible(message)
        match message:
            case FromTool():
                self._without_owner.add(message.tool_call_id)
            case FromAssistant():
                calls = (block.tool_call_id for block in message.blocks if isinstance(block, ToolCallView))
                self._without_owner.difference_update(calls)
            case _:
                pass

    def note_step_start(self) -> None:
        """Note the start of a step: no older message can have made the calls of this step."""
        self._without_owner.clear()

    def may_begin_here(self) -> bool:
        """Whether the page may begin without the next older message. A very long page must."""
        if self._size > LONG_PAGE_CHARACTERS:
            return True
        if len(self.messages) < self._limit or self._without_owner:
            return False
        return self._has_visible or len(self.messages) >= self._limit + MAX_EXTENDED


def _characters(message: MessageView) -> int:
    match message:
        case FromUser(text=text) | Failed(message=text) | Info(message=text):
            return len(text)
        case FromTool(content=content, details=details):
            return len(content) + len(details)
        case FromAssistant(blocks=blocks):
            return sum(len(block.arguments if isinstance(block, ToolCallView) else block.text) for block in blocks)
        case FromCompaction(summary=summary):
            return len(summary)
        case Ended():
            return 0


def _is_visible(message: MessageView) -> bool:
    if isinstance(message, FromAssistant):
        return any(isinstance(block, TextView) and block.text.strip() for block in message.blocks)
    return isinstance(message, FromUser | Failed)


def view_of(event: Event, pinned: Collection[str] = ()) -> MessageView | None:
    """The event as a person sees it; None: people do not see it."""
    at: dict[str, Any] = {"position": event.position, "time": event.time}
    match event.body:
        case UserMessage() as body:
            return FromUser(
                **at,
                message_id=body.message_id,
                turn_id=body.turn_id,
                text=body.content,
                delivery=body.delivery,
                attachments=body.attachments,
                files=message_files(body.files),
                pinned=body.message_id in pinned,
            )
        case AssistantMessage() as body:
            return FromAssistant(
                **at,
                message_id=body.message_id,
                blocks=tuple(_blocks(body.blocks)),
                model=body.model,
                interrupted=body.interrupted,
                duration_ms=body.duration_ms,
            )
        case ToolCompleted() as body:
            return FromTool(
                **at,
                tool_call_id=body.tool_call_id,
                success=body.success,
                content=body.content,
                error=body.error,
                details=body.details,
                simulated=body.simulated,
                duration_ms=body.duration_ms,
            )
        case SessionError() as body:
            return Failed(**at, code=body.error_type, message=body.message, retryable=body.retryable)
        case SessionInfo() as body:
            return Info(**at, message=body.message, level=body.level)
        case CompactionEnded() as body:
            return FromCompaction(
                **at,
                compaction_id=body.compaction_id,
                success=body.success,
                method=body.method,
                trigger=body.trigger,
                up_to=body.up_to,
                summary=body.summary,
                kept=len(body.verbatim),
                removed=body.removed,
                tokens_before=body.tokens_before,
                tokens_after=body.tokens_after,
                error=body.error,
                message=body.message,
                duration_ms=body.duration_ms,
            )
        case TurnEnded() as body:
            return Ended(**at, turn_id=body.turn_id, reason=body.reason, duration_ms=body.duration_ms)
        case _:
            return None


def _blocks(blocks: tuple[Block, ...]) -> Iterator[BlockView]:
    for block in blocks:
        match block:
            case TextBlock(text=text):
                yield TextView(text=text)
            case ReasoningBlock(text=text):
                if text:
                    yield ReasoningView(text=text)
            case _:
                yield ToolCallView(tool_call_id=block.tool_call_id, name=block.name, arguments=block.arguments)


def events_before(events: AsyncIterator[Event], before: Position) -> AsyncIterator[Event]:
    """The events before a position."""
    return (event async for event in events if event.position < before)
