"""Encodes a model request as the body of a call of OpenAI's Responses.

The input comes last and is prefix-stable: the encoded items of one step, without the closing bracket, are byte for byte
the beginning of the next step's. System text is an item of the input too, at its place; in `instructions`, a change of
it would move everything.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.message import PDF, Image
from holdfast.models.call_ids import CallIds
from holdfast.models.chat_request import EFFORTS, PDF_NAME, data_url
from holdfast.models.image_note import with_image_note
from holdfast.models.info import ModelInfo
from holdfast.models.messages_parts import IMAGE_TYPES
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelRequest,
    Reasoning,
    SystemText,
    ToolOutcome,
    ToolSpec,
    UserText,
)
from holdfast.models.responses_shapes import MessageOpening, kept_item

MAX_CACHE_KEY_CHARACTERS: Final = 64
"""The longest `prompt_cache_key` that OpenAI takes."""

MIN_OUTPUT_TOKENS: Final = 16
"""The smallest `max_output_tokens` that OpenAI takes."""

MAX_NAME_CHARACTERS: Final = 64
"""The longest name that a tool may have."""

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")

_LEAST_EFFORTS: Final = (
    (re.compile(r"o\d|gpt-5-codex"), "low"),
    (re.compile(r"gpt-5-pro"), "high"),
    (re.compile(r"gpt-5(-mini|-nano)?(-\d{4}-.*)?$"), "minimal"),
)
"""The least effort of the models that can't do without reasoning; for every other it is `none`."""

_DO_NOT_REASON: Final = ("gpt-3.5", "gpt-4", "chatgpt-")
"""Models that refuse a call which mentions reasoning."""


class _InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class _InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str
    detail: str = "auto"


class _InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    filename: str
    file_data: str


_Content = str | list[_InputText | _InputImage | _InputFile]


class _Message(msgspec.Struct, tag_field="type", tag="message"):
    role: Literal["system", "user", "assistant"]
    content: _Content
    phase: str | msgspec.UnsetType = msgspec.UNSET


class _FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str


class _FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: _Content


_Item = _Message | _FunctionCall | _FunctionCallOutput | msgspec.Raw


def encode_items(messages: Iterable[ContextMessage], *, reasoning_source: str, takes_images: bool = True) -> bytes:
    """The conversation as a JSON array of input items. Pure; a message has the same bytes at every position."""
    ids = CallIds()
    items = (item for message in messages for item in _items(message, ids, reasoning_source, takes_images))
    return b"[%b]" % b",".join(map(to_bytes, items))


def encode_request(request: ModelRequest, *, model: str, info: ModelInfo, summary: str | None, source: str) -> bytes:
    """The whole body of one call. `source` is the source whose reasoning is sent back."""
    head: dict[str, Any] = {"model": model, "store": False}
    if request.stream:
        head["stream"] = True
    if request.max_tokens is not None:
        head["max_output_tokens"] = max(MIN_OUTPUT_TOKENS, request.max_tokens)
    if info.takes_thinking and not model.startswith(_DO_NOT_REASON):
        head["include"] = ["reasoning.encrypted_content"]
        if reasoning := _reasoning(request, model, summary):
            head["reasoning"] = reasoning
    if request.marks_cache and request.cache_key:
        head["prompt_cache_key"] = _cache_key(request.cache_key)
    if request.tools:
        head["tools"] = [_tool(tool) for tool in request.tools]
    items = encode_items(request.messages, reasoning_source=source, takes_images=info.takes_images)
    return b'%b,"input":%b}' % (to_bytes(head)[:-1], items)


def _reasoning(request: ModelRequest, model: str, summary: str | None) -> dict[str, str]:
    effort = request.reasoning_effort
    if request.thinking is not None:
        effort = next((name for most, name in EFFORTS if request.thinking <= most), "high")
        effort = _least_effort(model) if effort == "none" else effort
    fields = {"effort": effort} if effort is not None else {}
    return {**fields, "summary": summary} if summary is not None and effort != "none" else fields


def _least_effort(model: str) -> str:
    return next((effort for pattern, effort in _LEAST_EFFORTS if pattern.match(model)), "none")


def _cache_key(key: str) -> str:
    return key if len(key) <= MAX_CACHE_KEY_CHARACTERS else sha256(key.encode()).hexdigest()


def _tool(tool: ToolSpec) -> dict[str, Any]:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **fields, "strict": False}


def _items(message: ContextMessage, ids: CallIds, source: str, takes_images: bool) -> list[_Item]:
    match message:
        case SystemText(text):
            return [_Message("system", text)]
        case UserText(text, images):
            return [_Message("user", _content(text, images, takes_images))]
        case ToolOutcome(tool_call_id, text, images):
            return [_FunctionCallOutput(ids.of_result(tool_call_id), _content(text, images, takes_images))]
        case AssistantTurn():
            return _answer(message, ids, source)


def _content(text: str, images: Sequence[Image], takes_images: bool) -> _Content:
    if not images:
        return text
    if not takes_images:
        return with_image_note(text, images)
    pictures = map(_picture, images)
    return [_InputText(text), *pictures] if text else [*pictures]


def _picture(image: Image) -> _InputImage | _InputFile | _InputText:
    if image.media_type == PDF:
        return _InputFile(PDF_NAME, data_url(image))
    if image.media_type in IMAGE_TYPES and image.data:
        return _InputImage(data_url(image))
    kind = "".join(filter(str.isprintable, image.media_type))
    return _InputText(f"[An image of the type {kind or 'unknown'} was left out: this model does not take it.]")


def _answer(turn: AssistantTurn, ids: CallIds, source: str) -> list[_Item]:
    """The items of one answer in their order. Reasoning that no item of the answer follows would be refused."""
    items = list(_ordered(turn, ids, turn.reasoning if turn.reasoning_source == source else ()))
    while items and isinstance(items[-1], msgspec.Raw):
        items.pop()
    return items


def _ordered(turn: AssistantTurn, ids: CallIds, reasoning: Iterable[Reasoning]) -> Iterator[_Item]:
    at = called = 0
    phase: str | msgspec.UnsetType = msgspec.UNSET
    for piece in (*reasoning, Reasoning("", "", len(turn.text), len(turn.tool_calls))):
        if text := turn.text[at : piece.text_before]:
            yield _Message("assistant", text, phase)
        for use in turn.tool_calls[called : piece.calls_before]:
            yield _FunctionCall(ids.of_call(use.tool_call_id), _name(use.name), use.arguments)
        at, called = max(at, piece.text_before), max(called, piece.calls_before)
        phase = msgspec.UNSET
        match kept_item(piece.opaque):
            case MessageOpening(phase=str(named)):
                phase = named
            case msgspec.Raw() as item:
                yield item
            case _:
                pass


def _name(tool: str) -> str:
    """The name of a tool that was called. A model may have called one by a name that no tool can have; every later call
    would be refused for it."""
    return _NO_NAME.sub("_", tool)[:MAX_NAME_CHARACTERS] or "unnamed"
