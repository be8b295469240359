"""What was said in a session, event by event: the text that recall reads, and the part of it that search finds.

Only what a person or the model said, and results of tools: no reasoning, no arguments of calls, nothing that the
runtime added for the model.
"""

from typing import Final, Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import ToolCallId
from holdfast.events.message import AssistantMessage, TextBlock, UserMessage
from holdfast.events.tool import Origin, ToolCompleted
from holdfast.events.words import words_of

MAX_SEARCHED_MESSAGE: Final = 64_000
"""How many characters of a message search finds: as many as a message of a person may have."""
MAX_SEARCHED_RESULT: Final = 8_000
"""How many characters of a tool result search finds: its beginning says what it is about."""

Speaker = Literal["person", "assistant", "tool"]


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """The text of one event, and its speaker."""

    speaker: Speaker
    text: str
    tool_call_id: ToolCallId = ToolCallId("")
    """The call whose result it is."""
    origin: Origin = "person"
    """Where the text comes from; the model's own text counts as a person's, because neither is from outside."""


def passage_of(body: Body) -> Passage | None:
    """What the event says, as the model read it; None if it says nothing."""
    match body:
        case UserMessage():
            return Passage(speaker="person", text=body.model_text or body.content)
        case AssistantMessage():
            text = "\n\n".join(block.text for block in body.blocks if isinstance(block, TextBlock) and block.text)
            return Passage(speaker="assistant", text=text) if text else None
        case ToolCompleted():
            speaker: Speaker = "person" if body.origin == "person" and body.success else "tool"
            return Passage(speaker=speaker, text=body.content, tool_call_id=body.tool_call_id, origin=body.origin)
        case _:
            return None


def searched_words(body: Body) -> set[str]:
    """The words by which the event is found."""
    passage = passage_of(body)
    if passage is None:
        return set()
    limit = MAX_SEARCHED_RESULT if passage.tool_call_id else MAX_SEARCHED_MESSAGE
    found = words_of(passage.text[:limit])
    if isinstance(body, UserMessage) and body.model_text:
        found |= words_of(body.content[:limit])
    return found
