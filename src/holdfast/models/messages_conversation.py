"""Turns the neutral messages into those of Anthropic's Messages, so that the provider refuses none of them.

Roles alternate: a user message stands before and after each answer, and the results of the answer's tools open it. What
a message becomes depends only on the messages before it, so that a step's conversation begins the next step's.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.events.message import Image
from holdfast.models.call_ids import CallIds
from holdfast.models.image_note import with_image_note
from holdfast.models.messages_parts import (
    THINKING,
    DocumentPart,
    ImagePart,
    MarkablePart,
    Part,
    ReturnedPart,
    SentMessage,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    image_part,
    input_of,
    name_of,
    returned_part,
)
from holdfast.models.model import AssistantTurn, ContextMessage, SystemText, ToolOutcome, UserText

FILLER: Final = "(continue)"
"""Stands where the provider demands a user message and the conversation has none."""

NO_RESULT: Final = "(no result)"
"""Stands for the result of a tool call that has none: the provider demands one for each call."""


class SentConversation:
    """The messages to send. `places` has the part that ends each neutral message; None if no part does."""

    def __init__(self, messages: Iterable[ContextMessage], *, source: str, takes_images: bool) -> None:
        self.messages: list[SentMessage] = []
        self._source = source
        self._takes_images = takes_images
        self._ids = CallIds()
        self._awaited: dict[str, None] = {}
        """The calls of the last answer that have no result yet."""
        self._results: list[Part] = []
        self._said: list[Part] = []
        self.places = [self._add(message) for message in messages]
        self._end_user_message()

    @property
    def began_tools_without_thinking(self) -> bool:
        """Whether the conversation is in a turn of tools that does not begin with thinking, as after a switch of model.
        The provider refuses to think in the middle of such a turn."""
        pairs = zip(self.messages[-2::-2], self.messages[-1::-2], strict=False)
        steps = [answer for answer, _ in itertools.takewhile(lambda pair: pair[1].has_results, pairs)]
        return bool(steps) and not steps[-1].begins_with_thinking

    def _add(self, message: ContextMessage) -> MarkablePart | None:
        match message:
            case UserText(text, images):
                return self._say(text, images)
            case SystemText(text):
                # A system text in the middle: in front of the conversation it would change the prefix.
                return self._say(text)
            case ToolOutcome():
                return self._add_result(message)
            case AssistantTurn():
                return self._add_answer(message)

    def _say(self, text: str, images: Sequence[Image] = ()) -> MarkablePart | None:
        parts = self._content(text, images)
        self._said += parts
        return parts[-1] if parts else None

    def _add_result(self, outcome: ToolOutcome) -> MarkablePart | None:
        tool_use_id = self._ids.of_result(outcome.tool_call_id)
        if tool_use_id not in self._awaited:
            return self._say(f"(a result without its call)\n{outcome.text}", outcome.images)
        del self._awaited[tool_use_id]
        parts = self._content(outcome.text, outcome.images)
        match parts:
            case []:
                result = ToolResultPart(tool_use_id)
            case [TextPart(text)]:
                result = ToolResultPart(tool_use_id, text)
            case _:
                result = ToolResultPart(tool_use_id, parts)
        self._results.append(result)
        return result

    def _add_answer(self, turn: AssistantTurn) -> MarkablePart | None:
        parts = self._answer_parts(turn)
        if not parts:
            if not (self._awaited or self._results or self._said):
                self._said.append(TextPart(FILLER))  # It stood at the end of the call that got this answer.
            return None
        self._end_user_message()
        self.messages.append(SentMessage("assistant", parts))
        self._awaited = {part.id: None for part in parts if isinstance(part, ToolUsePart)}
        last = parts[-1]
        return None if isinstance(last, ReturnedPart) else last

    def _end_user_message(self) -> None:
        missing = [ToolResultPart(tool_use_id, NO_RESULT) for tool_use_id in self._awaited]
        parts = [*self._results, *missing, *self._said] or [TextPart(FILLER)]
        self.messages.append(SentMessage("user", parts))
        self._awaited, self._results, self._said = {}, [], []

    def _content(self, text: str, images: Sequence[Image]) -> list[TextPart | ImagePart | DocumentPart]:
        if not self._takes_images:
            text, images = with_image_note(text, images), ()
        return [*_texts(text), *map(image_part, images)]

    def _answer_parts(self, turn: AssistantTurn) -> list[Part]:
        """The parts in the order in which they came, as far as the places of the reasoning tell."""
        parts: list[Part] = []
        text_at = calls_at = 0
        for reasoning in turn.reasoning if turn.reasoning_source == self._source else ():
            if (returned := returned_part(reasoning)) is not None:
                parts += _texts(turn.text[text_at : reasoning.text_before])
                parts += self._calls(turn, calls_at, reasoning.calls_before)
                parts.append(returned)
                text_at, calls_at = max(text_at, reasoning.text_before), max(calls_at, reasoning.calls_before)
        parts += _texts(turn.text[text_at:])
        parts += self._calls(turn, calls_at, len(turn.tool_calls))
        # No message may end with thinking.
        while parts and isinstance(last := parts[-1], ReturnedPart) and last.kind in THINKING:
            parts.pop()
        return parts

    def _calls(self, turn: AssistantTurn, begin: int, end: int) -> list[Part]:
        return [
            ToolUsePart(self._ids.of_call(use.tool_call_id), name_of(use.name), input_of(use.arguments))
            for use in turn.tool_calls[begin:end]
        ]


def _texts(text: str) -> list[TextPart]:
    """The text as a part. The provider refuses one with nothing but white space."""
    return [TextPart(text)] if text.strip() else []
