"""Pages of a conversation, from its end: what was said, what tools gave, and how turns ended.

A page is returned oldest first. It never begins between a call and the message that made it, has something to see in
it if there is anything, and joins the next older page without a hole: that one is asked for with the page's `before`.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.events.message import AssistantMessage, Block, ReasoningBlock, TextBlock, UserMessage
from holdfast.events.session import SessionError, SessionInfo
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import StepStarted, TurnEnded

LONG_PAGE_CHARACTERS: Final = 4_000_000
"""A page that has more than this ends with the message that it came to, which may be as long as a result can be."""

MAX_EXTENDED: Final = 200
"""How many more messages a page may have than were asked for, to have something to see in it. Beyond that it is
extended only to the message that made the calls of its oldest step, so that its results are not without their calls."""


class TextView(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class ReasoningView(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call"):
    tool_call_id: str
    name: str
    arguments: str
    """As the model wrote them; not necessarily JSON."""


BlockView = TextView | ReasoningView | ToolCallView


class Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="role"):
    """Something in a conversation, at its place in the log."""

    position: int
    time: int


class FromUser(Said, frozen=True, tag="user"):
    """What a person typed."""

    message_id: str
    turn_id: str
    text: str
    delivery: str
    attachments: tuple[dict[str, Any], ...] = ()


class FromAssistant(Said, frozen=True, tag="assistant"):
    """One answer of the model."""

    message_id: str
    blocks: tuple[BlockView, ...]
    model: str
    interrupted: bool
    duration_ms: int


class FromTool(Said, frozen=True, tag="tool"):
    """The result of a call."""

    tool_call_id: str
    success: bool
    content: str
    error: str | None
    details: str
    simulated: bool
    duration_ms: int


class Failed(Said, frozen=True, tag="error"):
    """Why a turn failed."""

    code: str
    message: str
    retryable: bool


class Info(Said, frozen=True, tag="info"):
    """A line for people."""

    message: str
    level: str


class Ended(Said, frozen=True, tag="turn_end"):
    """How a turn ended."""

    turn_id: str
    reason: Literal["completed", "stopped", "error", "interrupted"]
    duration_ms: int


MessageView = FromUser | FromAssistant | FromTool | Failed | Info | Ended


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[MessageView, ...]
    before: int | None
    """Ask for the page before this one with it. None: this is the first."""


async def page_of(events: AsyncIterator[Event], limit: int) -> MessagePage:
    """The last page of these events, which come newest first."""
    growing = GrowingPage(limit)
    async for event in events:
        if isinstance(event.body, StepStarted):
            growing.step_began()
        said = view_of(event)
        if said is None:
            continue
        if growing.may_begin_here():
            return MessagePage(messages=tuple(reversed(growing.messages)), before=growing.messages[-1].position)
        growing.extend(said)
    return MessagePage(messages=tuple(reversed(growing.messages)), before=None)


class GrowingPage:
    """A page that is extended message by message, the newest first."""

    def __init__(self, limit: int) -> None:
        self.messages: list[MessageView] = []
        self._limit = limit
        self._size = 0
        self._has_visible = False
        self._without_owner: set[str] = set()
        """Calls whose results are on the page, and the message that made them is not yet."""

    def extend(self, said: MessageView) -> None:
        self.messages.append(said)
        self._size += _characters(said)
        self._has_visible = self._has_visible or _is_visible(said)
        match said:
            case FromTool():
                self._without_owner.add(said.tool_call_id)
            case FromAssistant():
                calls = (block.tool_call_id for block in said.blocks if isinstance(block, ToolCallView))
                self._without_owner.difference_update(calls)
            case _:
                pass

    def step_began(self) -> None:
        """No older message can have made the calls of this step."""
        self._without_owner.clear()

    def may_begin_here(self) -> bool:
        """Whether the page can do without the next older message. One that is very long has to."""
        if self._size > LONG_PAGE_CHARACTERS:
            return True
        if len(self.messages) < self._limit or self._without_owner:
            return False
        return self._has_visible or len(self.messages) >= self._limit + MAX_EXTENDED


def _characters(said: MessageView) -> int:
    match said:
        case FromUser(text=text) | Failed(message=text) | Info(message=text):
            return len(text)
        case FromTool(content=content, details=details):
            return len(content) + len(details)
        case FromAssistant(blocks=blocks):
            return sum(len(block.arguments if isinstance(block, ToolCallView) else block.text) for block in blocks)
        case Ended():
            return 0


def _is_visible(said: MessageView) -> bool:
    if isinstance(said, FromAssistant):
        return any(isinstance(block, TextView) and block.text.strip() for block in said.blocks)
    return isinstance(said, FromUser | Failed)


def view_of(event: Event) -> MessageView | None:
    """What a person is shown of an event; None: nothing."""
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
                yield ReasoningView(text=text)
            case _:
                yield ToolCallView(tool_call_id=block.tool_call_id, name=block.name, arguments=block.arguments)


def starts_before(events: AsyncIterator[Event], before: Position) -> AsyncIterator[Event]:
    """Those before a position."""
    return (event async for event in events if event.position < before)
