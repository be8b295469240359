"""Encodes a model request as the body of a chat completion call.

The messages come last and are prefix-stable: the encoded messages of one step, without the closing bracket, are byte
for byte the beginning of the next step's.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.message import Image
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

ThinkingField = Literal["reasoning", "reasoning_effort"]
"""The field for the thinking budget: OpenRouter takes a number of tokens, OpenAI and most others a word."""

EFFORTS: Final = ((0, "none"), (4_000, "low"), (16_000, "medium"))
"""The word for a thinking budget of up to this many tokens; a larger budget is `high`."""

TOOL_IMAGES: Final = "The images of the tool results above, in order."
"""Introduces the images of tool results: a tool message takes only text, so the images go into a user message."""


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Url(msgspec.Struct):
    url: str


class _Picture(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Url


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: str


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[_Text | _Picture]


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
    """The conversation as a JSON array. Pure; a message has the same bytes at every position.

    The images of tool results follow the last result of their step. Between two results of a step the prefix would not
    be stable."""
    return b"[%b]" % b",".join(to_bytes(message) for message in _chat_messages(messages))


def encode_request(
    request: ModelRequest,
    *,
    model: str,
    max_tokens_field: MaxTokensField,
    thinking_field: ThinkingField = "reasoning_effort",
) -> bytes:
    """The whole body of one call."""
    head: dict[str, Any] = {"model": model}
    if request.stream:
        head |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.max_tokens is not None:
        head[max_tokens_field] = request.max_tokens
    if request.thinking is not None:
        head[thinking_field] = _thinking(request.thinking, thinking_field)
    elif request.reasoning_effort is not None:
        head["reasoning_effort"] = request.reasoning_effort
    if request.tools:
        head["tools"] = [_tool(tool) for tool in request.tools]
    return b'%b,"messages":%b}' % (to_bytes(head)[:-1], encode_messages(request.messages))


def _thinking(budget: int, field: ThinkingField) -> Any:
    if field == "reasoning":
        return {"max_tokens": budget} if budget else {"enabled": False}
    return next((effort for most, effort in EFFORTS if budget <= most), "high")


def _chat_messages(messages: Iterable[ContextMessage]) -> Iterator[_System | _User | _Assistant | _ToolResult]:
    tool_images: list[Image] = []
    for message in messages:
        if isinstance(message, ToolOutcome):
            tool_images += message.images
        elif tool_images:
            yield _User(_parts(TOOL_IMAGES, tool_images))
            tool_images = []
        yield _message(message)
    if tool_images:
        yield _User(_parts(TOOL_IMAGES, tool_images))


def _message(message: ContextMessage) -> _System | _User | _Assistant | _ToolResult:
    match message:
        case SystemText(text):
            return _System(text)
        case UserText(text, ()):
            return _User(text)
        case UserText(text, images):
            return _User(_parts(text, images))
        case AssistantTurn(text, ()):
            return _Assistant(text)
        case AssistantTurn(text, tool_calls):
            return _Assistant(text or None, [_tool_call(use) for use in tool_calls])
        case ToolOutcome(tool_call_id, text):
            return _ToolResult(tool_call_id, text)


def _parts(text: str, images: Sequence[Image]) -> list[_Text | _Picture]:
    return [_Text(text), *(_Picture(_Url(_data_url(image))) for image in images)]


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"


def _tool_call(use: ToolUse) -> _ToolCall:
    return _ToolCall(use.tool_call_id, _Function(use.name, use.arguments))


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
