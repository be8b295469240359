"""The conversation of a session as AI SDK clients load it: the messages of its last turns."""

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position
from holdfast.events.message import AssistantMessage, ToolCallBlock, UserMessage
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnStarted
from holdfast.server.ai_sdk.bodies import HistoryQuery
from holdfast.server.ai_sdk.message import GrowingConversation, UiMessage
from holdfast.server.log_tail import LONG_PAGE_CHARACTERS, events_backwards
from holdfast.store.store import Store

EVENTS_AT_ONCE: Final = 200


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation, oldest first. An answer that the turn's stream would replay is left out."""

    id: str
    messages: tuple[UiMessage, ...]
    before: int | None
    """The `before` of older messages. None: these are the first."""


async def last_messages(
    store: Store, key: Key, head: Position, query: HistoryQuery
) -> tuple[list[UiMessage], int | None]:
    """The messages of the last turns, and the position where the first of them starts, unless it is the first turn of
    all."""
    events, before = await _last_turns(store, key, head, query)
    conversation = GrowingConversation()
    for number, event in enumerate(events):
        conversation.take(event)
        if number % EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # Lets other requests run in between.
    return conversation.messages(), before


async def _last_turns(store: Store, key: Key, head: Position, query: HistoryQuery) -> tuple[list[Event], int | None]:
    turns = size = 0
    newest_first: list[Event] = []
    async with aclosing(events_backwards(store, key, head)) as events:
        async for event in events:
            if query.before is not None and event.position >= query.before:
                continue
            if turns == query.turns or (turns and size > LONG_PAGE_CHARACTERS):
                first = newest_first[-1].position
                return newest_first[::-1], first
            newest_first.append(_shortened(event) if size > LONG_PAGE_CHARACTERS else event)
            size += _characters(event)
            turns += isinstance(event.body, TurnStarted)
    return newest_first[::-1], None


def _characters(event: Event) -> int:
    match event.body:
        case ToolCompleted(content=content, details=details):
            return len(content) + len(details)
        case UserMessage(content=content):
            return len(content)
        case AssistantMessage(blocks=blocks):
            return sum(len(block.arguments if isinstance(block, ToolCallBlock) else block.text) for block in blocks)
        case _:
            return 0


def _shortened(event: Event) -> Event:
    """A tool result as the preview that the model got, in a turn whose results are too long together."""
    if not isinstance(event.body, ToolCompleted) or event.body.preview is None:
        return event
    body = msgspec.structs.replace(event.body, content=event.body.preview)
    return Event(event.position, event.id, event.time, body)
