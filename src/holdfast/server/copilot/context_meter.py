"""Measures the context of a session for `session.usage_info`, event by event."""

from typing import Any

from holdfast.events import compaction, message, session, tool, turn
from holdfast.events.event import Event
from holdfast.events.ids import Key, Position
from holdfast.server.operations import Operations
from holdfast.session.state import HistoryItem, ModelReply, Summary


class ContextMeter:
    """Follows one session. Reads its whole state when something that it can't count has changed: rarely."""

    def __init__(self, operations: Operations, key: Key) -> None:
        self._operations = operations
        self._key = key
        self._window: int | None = None
        self._messages = 0
        self._counted_to: Position | None = None
        """The messages up to this position are counted; None: nothing is known."""

    async def take(self, event: Event) -> dict[str, Any] | None:
        """The data of a `session.usage_info`, if the event counts a model call and the model's window is known."""
        match event.body:
            case session.Truncated() | session.ModelChanged() | session.SettingsChanged() | turn.TurnStarted():
                self._counted_to = None
            case compaction.CompactionEnded(success=True) | message.CallFailed():
                self._counted_to = None
            case message.UserMessage() | message.AssistantMessage() | message.Noted() | tool.ToolCompleted():
                if self._counted_to is not None and event.position > self._counted_to:
                    self._messages += 1
            case message.Usage(input_tokens=int(given), output_tokens=answered, context_tokens=size) if given:
                return await self._measured(size or given + (answered or 0))
            case _:
                pass
        return None

    async def _measured(self, tokens: int) -> dict[str, Any] | None:
        if self._counted_to is None:
            state = await self._operations.whole_state(self._key)
            self._window = await self._operations.window(self._key, state)
            self._messages = sum(map(_messages_in, state.history))
            self._counted_to = state.head
        if self._window is None:
            return None
        return {"currentTokens": tokens, "tokenLimit": self._window, "messagesLength": self._messages}


def _messages_in(item: HistoryItem) -> int:
    match item:
        case ModelReply(calls=calls):
            return 1 + sum(call.result is not None for call in calls)
        case Summary(people=people):
            return 1 + len(people)
        case _:
            return 1
