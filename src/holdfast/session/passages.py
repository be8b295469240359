"""The passages of a log as a text that a model can summarise. Pure.

The text is made from the log backwards, from the newest event on, as far as there is room. Only what is older than that
is taken from the summary of before.
"""

from typing import Final

from holdfast.events import message, quote, session, tool
from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.session.tokens import tokens_in

MAX_EVENT_CHARACTERS: Final = 6_000
"""Of a longer message, its beginning and its end."""
MAX_RESULT_CHARACTERS: Final = 2_000
"""Of a longer tool result or argument, its beginning and its end: the summary names what was found, not all of it."""


class Passages:
    """Collects the passages of a log from its newest event backwards, up to a number of tokens."""

    def __init__(self, up_to: Position, tokens: int, seed: str) -> None:
        self._seed = seed
        self.next = up_to
        """The position of the next event to take; 0 when there is none, or no room for one."""
        self._left = tokens
        self._passages: list[str] = []

    @property
    def covers_from(self) -> Position:
        """The first position that the text covers."""
        return Position(self.next + 1)

    def take(self, event: Event) -> bool:
        """Take the event at `next`, and skip what a rewind undid. False: there is no room for it."""
        passage = _passage(event, self._seed)
        if passage:
            tokens = tokens_in(passage)
            if tokens > self._left and self._passages:
                return False
            self._left -= tokens
            self._passages.append(passage)
        kept = event.body.kept if isinstance(event.body, session.Truncated) else event.position - 1
        self.next = Position(min(kept, event.position - 1))
        return True

    def text(self) -> str:
        return "\n\n".join(reversed(self._passages))


def _passage(event: Event, seed: str) -> str:
    body, at = event.body, event.position
    match body:
        case message.UserMessage():
            return f"[{at}] User: {_shortened(body.model_text or body.content, MAX_EVENT_CHARACTERS)}"
        case message.AssistantMessage():
            return _answer(body, at)
        case tool.ToolCompleted():
            result = quote.quoted(_shortened(body.content, MAX_RESULT_CHARACTERS), body.origin, seed)
            return f"[{at}] Result of {body.tool_call_id}: {result}"
        case _:
            return ""


def _answer(body: message.AssistantMessage, at: Position) -> str:
    parts = []
    for block in body.blocks:
        if isinstance(block, message.TextBlock) and block.text:
            parts.append(f"[{at}] Assistant: {_shortened(block.text, MAX_EVENT_CHARACTERS)}")
        elif isinstance(block, message.ToolCallBlock):
            arguments = _shortened(block.arguments, MAX_RESULT_CHARACTERS)
            parts.append(f"[{at}] Assistant calls {block.name} ({block.tool_call_id}): {arguments}")
    return "\n".join(parts)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters left out … {text[-half:]}"
