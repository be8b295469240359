"""Encodes a model request as the body of a chat completion call.

The messages come last and are prefix-stable: the encoded messages of one step, without the closing bracket, are byte
for byte the beginning of the next step's. Cache marks move; they are no part of what the model reads.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.message import PDF, Image
from holdfast.models.call_ids import COMMON_ID, CallIds
from holdfast.models.image_note import with_image_note
from holdfast.models.kept_reasoning import kept_in
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelRequest,
    SystemText,
    ToolOutcome,
    ToolSpec,
    UserText,
)

MaxTokensField = Literal["max_tokens", "max_completion_tokens"]

ThinkingField = Literal["reasoning", "reasoning_effort"]
"""The field for the thinking budget: OpenRouter takes a number of tokens, OpenAI and most others a word."""

EFFORTS: Final = ((0, "none"), (4_000, "low"), (16_000, "medium"))
"""The word for a thinking budget of up to this many tokens; a larger budget is `high`."""

PDF_NAME: Final = "document.pdf"
"""A PDF needs a name here. Its own is in the text of its message."""

TOOL_IMAGES: Final = "The images of the tool results above, in order."
"""Introduces the images of tool results: a tool message takes only text, so the images go into a user message."""


class _CacheMark(msgspec.Struct, tag_field="type", tag="ephemeral"):
    """Asks Claude's providers to cache everything up to the end of a part."""


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    cache_control: _CacheMark | msgspec.UnsetType = msgspec.UNSET


class _Url(msgspec.Struct):
    url: str


class _Picture(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Url


class _Data(msgspec.Struct):
    filename: str
    file_data: str


class _File(msgspec.Struct, tag_field="type", tag="file"):
    file: _Data


_Content = str | list[_Text | _Picture | _File]


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: _Content


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: _Content


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct, tag_field="type", tag="function"):
    id: str
    function: _Function


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: _Content | None
    tool_calls: list[_ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_details: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class _ToolResult(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: _Content


_Message = _System | _User | _Assistant | _ToolResult


class MessageForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form in which an endpoint takes messages. It is the same for every call of a conversation."""

    reasoning_source: str = ""
    """The source whose reasoning is sent back."""
    takes_images: bool = True
    takes_cache_marks: bool = False
    """Text is written as parts, which can carry marks."""


PLAIN: Final = MessageForm()
"""Without reasoning and marks."""


def encode_messages(messages: Sequence[ContextMessage], form: MessageForm = PLAIN, marks: Iterable[int] = ()) -> bytes:
    """The conversation as a JSON array. Pure; a message has the same bytes at every position, except for its marks.
    `marks` are the indices of the messages to mark.

    The images of tool results follow the last result of their step. Between two results of a step the prefix would not
    be stable."""
    written = _ChatMessages(form)
    for message in messages:
        written.add(message)
    return b"[%b]" % b",".join(map(to_bytes, written.finish(marks)))


def encode_request(
    request: ModelRequest,
    *,
    model: str,
    max_tokens_field: MaxTokensField,
    thinking_field: ThinkingField = "reasoning_effort",
    form: MessageForm = PLAIN,
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
    marks = _marks(request) if form.takes_cache_marks and request.marks_cache else ()
    return b'%b,"messages":%b}' % (to_bytes(head)[:-1], encode_messages(request.messages, form, marks))


def _marks(request: ModelRequest) -> set[int]:
    """The messages to mark, at most three: the system text, the anchor and the newest."""
    marks = {len(request.messages) - 1}
    if request.messages and isinstance(request.messages[0], SystemText):
        marks.add(0)
    if request.cache_anchor is not None:
        marks.add(request.cache_anchor)
    return marks


def _thinking(budget: int, field: ThinkingField) -> Any:
    if field == "reasoning":
        return {"max_tokens": budget} if budget else {"enabled": False}
    return next((effort for most, effort in EFFORTS if budget <= most), "high")


class _ChatMessages:
    """The messages of a call, in the form of chat completions."""

    def __init__(self, form: MessageForm) -> None:
        self._form = form
        self._ids = CallIds(COMMON_ID)
        self._messages: list[_Message] = []
        self._ends: list[int] = []
        """How many messages there are after each neutral one."""
        self._tool_images: list[Image] = []

    def add(self, message: ContextMessage) -> None:
        if not isinstance(message, ToolOutcome):
            self._flush_images()
        elif self._form.takes_images:
            self._tool_images += message.images
        self._messages.append(self._message(message))
        self._ends.append(len(self._messages))

    def finish(self, marks: Iterable[int]) -> list[_Message]:
        """All messages, with a mark on the text of each of these neutral messages or, if it has none, on the last text
        before it."""
        self._flush_images()
        if self._ends:
            self._ends[-1] = len(self._messages)
        for index in marks:
            before = self._messages[: self._ends[index]] if 0 <= index < len(self._ends) else []
            text = next((text for message in reversed(before) if (text := _last_text(message))), None)
            if text is not None:
                text.cache_control = _CacheMark()
        return self._messages

    def _flush_images(self) -> None:
        if self._tool_images:
            self._messages.append(_User(self._parts(TOOL_IMAGES, self._tool_images)))
            self._tool_images = []

    def _message(self, message: ContextMessage) -> _Message:
        match message:
            case SystemText(text):
                return _System(self._content(text))
            case UserText(text, images) if images and self._form.takes_images:
                return _User(self._parts(text, images))
            case UserText(text, images):
                return _User(self._content(with_image_note(text, images)))
            case AssistantTurn():
                return self._answer(message)
            case ToolOutcome(tool_call_id, text, images):
                text = text if self._form.takes_images else with_image_note(text, images)
                return _ToolResult(self._ids.of_result(tool_call_id), self._content(text))

    def _answer(self, turn: AssistantTurn) -> _Assistant:
        is_own = bool(turn.reasoning_source) and turn.reasoning_source == self._form.reasoning_source
        kept = [found for piece in turn.reasoning if (found := kept_in(piece.opaque))] if is_own else []
        keeps_ids = any(found.keeps_ids for found in kept)
        answer = _Assistant(self._content(turn.text))
        if turn.tool_calls:
            answer.content = answer.content if turn.text else None
            answer.tool_calls = [
                _ToolCall(self._ids.of_call(use.tool_call_id, is_own=keeps_ids), _Function(use.name, use.arguments))
                for use in turn.tool_calls
            ]
        for found in kept:
            if found.reasoning_content is not None and turn.tool_calls:
                answer.reasoning_content = found.reasoning_content
            if found.reasoning_details:
                answer.reasoning_details = found.reasoning_details
        return answer

    def _content(self, text: str) -> _Content:
        # An empty part can't carry a mark: Claude's providers refuse it.
        return [_Text(text)] if self._form.takes_cache_marks and text else text

    def _parts(self, text: str, images: Sequence[Image]) -> list[_Text | _Picture | _File]:
        texts = [_Text(text)] if text else []
        pictures = [_picture(image) for image in images]
        # Only text can carry a mark: what stands after it would not be cached.
        return [*pictures, *texts] if self._form.takes_cache_marks else [*texts, *pictures]


def _last_text(message: _Message) -> _Text | None:
    parts = message.content if isinstance(message.content, list) else ()
    return next((part for part in reversed(parts) if isinstance(part, _Text) and part.text), None)


def _picture(image: Image) -> _Picture | _File:
    if image.media_type == PDF:
        return _File(_Data(PDF_NAME, data_url(image)))
    return _Picture(_Url(data_url(image)))


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
