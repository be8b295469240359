"""The input of a call of OpenAI's Responses, read as strictly as the real API reads it, into the neutral conversation.

It refuses unknown fields and types, calls without outputs and outputs without calls, and reasoning that was changed or
that another item follows than the one it was written for.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.model import AssistantTurn, ContextMessage, SystemText, ToolOutcome, ToolUse, UserText
from holdfast.models.sealed_facts import fingerprint, seal, sealed_facts
from holdfast.models.served_chat import image_bytes
from holdfast.models.served_protocol import CallRefused

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that tools, and the ids that calls may have."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_FILE: Final = re.compile(r"data:(application/pdf);base64,(.+)", re.DOTALL)
_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,(.+)", re.DOTALL)

Shape = TypeVar("Shape")

_Status = Literal["in_progress", "completed", "incomplete"]


class _InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


class _InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    image_url: str
    detail: Literal["low", "high", "auto", "original"] = "auto"
    prompt_cache_breakpoint: dict[str, Any] | None = None


class _InputFile(msgspec.Struct, tag_field="type", tag="input_file", forbid_unknown_fields=True):
    filename: str
    file_data: str


class _OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class _Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    refusal: str


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_InputText | _InputImage | _InputFile | _OutputText | _Refusal]
    type: str = "message"
    id: str | None = None
    status: _Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class _FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: _Status | None = None


class _FunctionCallOutput(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    call_id: str
    output: str | list[_InputText | _InputImage | _InputFile]
    id: str | None = None
    status: _Status | None = None


class _SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", forbid_unknown_fields=True):
    text: str


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    id: str
    summary: list[_SummaryText]
    content: list[Any] | None = None
    encrypted_content: str | None = None
    status: _Status | None = None


_Part = _InputText | _InputImage | _InputFile | _OutputText | _Refusal
_Item = _Message | _FunctionCall | _FunctionCallOutput | _Reasoning

_SHAPES: Final[dict[str, type[_Item]]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionCallOutput,
    "reasoning": _Reasoning,
}
_PREFIXES: Final = {"message": "msg_", "function_call": "fc_", "function_call_output": "fc_", "reasoning": "rs_"}


class _Kind(msgspec.Struct):
    type: Any = "message"


class InputRefused(CallRefused):
    """The API refuses the input, and names the parameter that is wrong."""

    def __init__(self, message: str, param: str, *, code: str | None = None, status: int = 400) -> None:
        super().__init__("invalid", message, status=status)
        self.param = param
        self.code = code


def read_input(encoded: Sequence[msgspec.Raw], *, model: str) -> tuple[ContextMessage, ...]:
    """The conversation. Raises `CallRefused` where the real API refuses a call."""
    items = [_item(f"input[{index}]", raw) for index, raw in enumerate(encoded)]
    _check_ids(items)
    _check_calls(items)
    _check_reasoning(items, model)
    return _conversation(items)


def following_facts(item: dict[str, Any] | None) -> tuple[str, ...]:
    """The facts about an item of an answer that the reasoning before it is bound to."""
    match item:
        case {"type": "message", "content": [{"text": str(text)}]}:
            return ("message", text)
        case {"type": "function_call", "call_id": str(call_id), "arguments": str(arguments)}:
            return ("function_call", call_id, arguments)
        case {"type": "reasoning", "id": str(item_id)}:
            return ("reasoning", item_id)
        case _:
            return ()


def sealed_reasoning(item_id: str, summary: Iterable[str], *, model: str, following: tuple[str, ...]) -> str:
    """The encrypted content of an item of reasoning. It binds the item to its model, and to the item after it."""
    return seal(model, item_id, fingerprint(*summary), fingerprint(*following))


def decoded(raw: msgspec.Raw | bytes, shape: type[Shape], param: str) -> Shape:
    """The value as this shape. Raises `CallRefused`, which names the parameter."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputRefused(f"Invalid '{param}': {error}", param) from None


def _item(param: str, raw: msgspec.Raw) -> _Item:
    kind = decoded(raw, _Kind, param).type
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        supported = ", ".join(f"'{name}'" for name in _SHAPES)
        raise InputRefused(f"Invalid value: '{kind}'. Supported values are: {supported}.", f"{param}.type")
    item: _Item = decoded(raw, shape, param)
    if item.id is not None and not (item.id.startswith(_PREFIXES[kind]) and _ID.fullmatch(item.id)):
        message = f"Invalid '{param}.id': '{item.id}'. Expected an ID that begins with '{_PREFIXES[kind]}'."
        raise InputRefused(message, f"{param}.id")
    match item:
        case _Message():
            _check_content(param, item)
        case _FunctionCall(name=name, call_id=call_id):
            _check_name(f"{param}.name", name)
            _check_name(f"{param}.call_id", call_id)
        case _FunctionCallOutput(call_id=call_id):
            _check_name(f"{param}.call_id", call_id)
            _images(param, item.output)
        case _Reasoning():
            pass
    return item


def _check_name(param: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise InputRefused(f"Invalid '{param}': '{name}' does not match '^[a-zA-Z0-9_-]{{1,64}}$'.", param)


def _check_content(param: str, message: _Message) -> None:
    if isinstance(message.content, str):
        return
    is_answer = message.role == "assistant"
    for at, part in enumerate(message.content):
        if isinstance(part, (_OutputText, _Refusal)) != is_answer:
            where = f"{param}.content[{at}]"
            raise InputRefused(f"Invalid value at '{where}': a message of role '{message.role}' can't have it.", where)
    _images(param, message.content)


def _images(param: str, content: str | Sequence[_Part]) -> tuple[Image, ...]:
    return tuple(_image(param, part) for part in content if isinstance(part, _InputImage | _InputFile))


def _image(param: str, part: "_InputImage | _InputFile") -> Image:
    if isinstance(part, _InputFile):
        match = _FILE.fullmatch(part.file_data)
        if match is not None and (data := image_bytes(match[2])):
            return Image(media_type=match[1], data=data)
        raise InputRefused("Invalid file: expected base64 of a PDF.", param)
    match = _IMAGE.fullmatch(part.image_url)
    if match is not None and (data := image_bytes(match[2])):
        return Image(media_type=match[1], data=data)
    if part.image_url.startswith("https://"):
        # It is not fetched: an image without bytes.
        return Image(media_type="", data=b"")
    raise InputRefused("Invalid image: expected a URL, or base64 of a PNG, JPEG, GIF or WebP.", param)


def _check_ids(items: Iterable[_Item]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id is not None and item.id in seen:
            raise InputRefused(f"Duplicate item found with id {item.id}.", "input")
        seen.add(item.id or "")


def _check_calls(items: Iterable[_Item]) -> None:
    called: set[str] = set()
    unanswered: dict[str, None] = {}
    for item in items:
        match item:
            case _FunctionCall(call_id=call_id):
                if call_id in called:
                    raise InputRefused(f"Duplicate item found with call_id {call_id}.", "input")
                called.add(call_id)
                unanswered[call_id] = None
            case _FunctionCallOutput(call_id=call_id):
                if call_id not in unanswered:
                    message = f"No tool call found for function call output with call_id {call_id}."
                    raise InputRefused(message, "input")
                del unanswered[call_id]
            case _:
                pass
    if unanswered:
        raise InputRefused(f"No tool output found for function call {next(iter(unanswered))}.", "input")


def _check_reasoning(items: Sequence[_Item], model: str) -> None:
    for item, after in zip(items, [*items, None][1:], strict=False):
        if isinstance(item, _Reasoning):
            _check_seal(item, model, _facts(after))


def _check_seal(item: _Reasoning, model: str, following: tuple[str, ...]) -> None:
    if item.encrypted_content is None:
        message = f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false."
        raise InputRefused(message, "input", status=404)
    if not following:
        raise InputRefused(f"Item '{item.id}' of type 'reasoning' was provided without its required item.", "input")
    facts = sealed_facts(item.encrypted_content)
    expected = (model, item.id, fingerprint(*(part.text for part in item.summary)), fingerprint(*following))
    if facts is None or facts[:3] != expected[:3]:
        message = f"The encrypted content for item {item.id} could not be verified."
        raise InputRefused(message, "input", code="invalid_encrypted_content")
    if facts != expected:
        message = f"Item '{item.id}' of type 'reasoning' was provided without its required following item."
        raise InputRefused(message, "input")


def _facts(item: _Item | None) -> tuple[str, ...]:
    match item:
        case _Message(role="assistant"):
            return ("message", _text(item.content))
        case _FunctionCall():
            return ("function_call", item.call_id, item.arguments)
        case _Reasoning():
            return ("reasoning", item.id)
        case _:
            return ()


def _conversation(items: Iterable[_Item]) -> tuple[ContextMessage, ...]:
    """The conversation; the items of one answer become one message."""
    conversation: list[ContextMessage] = []
    for item in items:
        match item:
            case _Message(role="system" | "developer"):
                conversation.append(SystemText(_text(item.content)))
            case _Message(role="user"):
                conversation.append(UserText(_text(item.content), _images("input", item.content)))
            case _FunctionCallOutput(call_id=call_id, output=output):
                conversation.append(ToolOutcome(ToolCallId(call_id), _text(output), _images("input", output)))
            case _:
                before = conversation[-1] if conversation else None
                answer = conversation.pop() if isinstance(before, AssistantTurn) else AssistantTurn("")
                assert isinstance(answer, AssistantTurn)
                conversation.append(_extended(answer, item))
    return tuple(conversation)


def _extended(answer: AssistantTurn, item: _Item) -> AssistantTurn:
    match item:
        case _Message():
            return msgspec.structs.replace(answer, text=answer.text + _text(item.content))
        case _FunctionCall():
            use = ToolUse(ToolCallId(item.call_id), item.name, item.arguments)
            return msgspec.structs.replace(answer, tool_calls=(*answer.tool_calls, use))
        case _:
            return answer


def _text(content: str | Sequence[_Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(map(_part_text, content))


def _part_text(part: _Part) -> str:
    match part:
        case _InputText(text=text) | _OutputText(text=text):
            return text
        case _Refusal(refusal=text):
            return text
        case _InputImage() | _InputFile():
            return ""
