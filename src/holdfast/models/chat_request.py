"""A model request as the body of a chat completion call.

The messages come last and are prefix-stable: what was sent at one step is, byte for byte and without the closing
bracket, the beginning of what is sent at the next.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelRequest,
    SystemText,
    ToolOutcome,
    ToolSpec,
    ToolUse,
    UserText,
)

MaxTokensField = Literal["max_tokens", "max_completion_tokens"]


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: str


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct, tag_field="type", tag="function"):
    id: str
    function: _Function


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | None
    tool_calls: list[_ToolCall] | msgspec.UnsetType = msgspec.UNSET


class _ToolResult(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


def encode_messages(messages: Iterable[ContextMessage]) -> bytes:
    """The conversation as a JSON array. Pure, and the same message has the same bytes wherever it stands."""
    return to_bytes([_message(message) for message in messages])


def encode_request(request: ModelRequest, *, model: str, max_tokens_field: MaxTokensField) -> bytes:
    """The whole body of one call."""
    head: dict[str, Any] = {"model": model}
    if request.stream:
        head |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.max_tokens is not None:
        head[max_tokens_field] = request.max_tokens
    if request.tools:
        head["tools"] = [_tool(tool) for tool in request.tools]
    return b'%b,"messages":%b}' % (to_bytes(head)[:-1], encode_messages(request.messages))


def _message(message: ContextMessage) -> _System | _User | _Assistant | _ToolResult:
    match message:
        case SystemText(text):
            return _System(text)
        case UserText(text):
            return _User(text)
        case AssistantTurn(text, ()):
            return _Assistant(text)
        case AssistantTurn(text, tool_calls):
            return _Assistant(text or None, [_tool_call(use) for use in tool_calls])
        case ToolOutcome(tool_call_id, text):
            return _ToolResult(tool_call_id, text)


def _tool_call(use: ToolUse) -> _ToolCall:
    return _ToolCall(use.tool_call_id, _Function(use.name, use.arguments))


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
