"""The messages and tools that a model call sends, in the neutral form that each provider protocol translates."""

from typing import Any

import msgspec

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image


class SystemText(msgspec.Struct, frozen=True, tag="system", gc=False):
    text: str


class UserText(msgspec.Struct, frozen=True, tag="user", gc=False):
    text: str
    images: tuple[Image, ...] = ()


class ToolUse(msgspec.Struct, frozen=True, gc=False):
    tool_call_id: ToolCallId
    name: str
    arguments: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """A piece of reasoning, and its place in the answer: after how many characters of its text and how many calls."""

    text: str
    opaque: str
    """The provider's own data about it, as JSON: see `ReasoningBlock`."""
    text_before: int = 0
    calls_before: int = 0


class AssistantTurn(msgspec.Struct, frozen=True, tag="assistant", gc=False):
    text: str
    tool_calls: tuple[ToolUse, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    reasoning_source: str = ""
    """The provider and model that wrote the reasoning. It is sent to no other."""


class ToolOutcome(msgspec.Struct, frozen=True, tag="tool", gc=False):
    tool_call_id: ToolCallId
    text: str
    images: tuple[Image, ...] = ()


ContextMessage = SystemText | UserText | AssistantTurn | ToolOutcome


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str
    parameters: dict[str, Any]
