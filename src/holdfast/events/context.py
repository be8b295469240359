"""The messages and tools that a model call sends, in the neutral form that each provider protocol translates."""

from typing import Any

import msgspec

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image


class SystemText(msgspec.Struct, frozen=True, tag="system"):
    text: str


class UserText(msgspec.Struct, frozen=True, tag="user"):
    text: str
    images: tuple[Image, ...] = ()


class ToolUse(msgspec.Struct, frozen=True):
    tool_call_id: ToolCallId
    name: str
    arguments: str


class AssistantTurn(msgspec.Struct, frozen=True, tag="assistant"):
    text: str
    tool_calls: tuple[ToolUse, ...] = ()


class ToolOutcome(msgspec.Struct, frozen=True, tag="tool"):
    tool_call_id: ToolCallId
    text: str
    images: tuple[Image, ...] = ()


ContextMessage = SystemText | UserText | AssistantTurn | ToolOutcome


class ToolSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: dict[str, Any]
