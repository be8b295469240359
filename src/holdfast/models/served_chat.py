"""Chat completions as the scripted server speaks them."""

import base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.call_ids import COMMON_ID
from holdfast.models.chat_request import TOOL_IMAGES
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    SystemText,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolOutcome,
    ToolUse,
    UserText,
)
from holdfast.models.prefix_cache import request_part
from holdfast.models.served_details import DetailsRefused, SaidMessage, check_details, detail_pieces, whole_details
from holdfast.models.served_protocol import AnswerFrames, CallRefused, RefusalKind, ServedAnswer, ServedCall

MARKED_MODELS: Final = "anthropic/"
"""The models behind a chat completions route whose provider caches nothing without marks: Claude through OpenRouter."""

_DONE: Final = b"data: [DONE]\n\n"

_CODES: Final[dict[RefusalKind, str]] = {
    "invalid": "invalid_request_error",
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "too_large": "invalid_request_error",
    "context_exceeded": "context_length_exceeded",
    "overloaded": "server_error",
    "unavailable": "server_error",
}


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str = ""
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Call(msgspec.Struct):
    messages: list[msgspec.Raw]
    tools: list[msgspec.Raw] = []
    model: str = "scripted"
    stream: bool = False
    stream_options: _StreamOptions | None = None
    prompt_cache_key: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class ServedChat:
    """The protocol of OpenAI's chat completions. It remembers every beginning of a request by itself."""

    name: Final = "chat completions"
    path: Final = "/chat/completions"
    malformed: Final = b'{"id":"chatcmpl-scripted","choices":[{"delta":{"content":'
    malformed_frame: Final = b"data: " + malformed + b"\n\n"

    def key(self, headers: Mapping[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def read(self, body: bytes, headers: Mapping[str, str]) -> ServedCall:
        try:
            call = msgspec.json.decode(body, type=_Call)
            messages = [msgspec.json.decode(message, type=_Message) for message in call.messages]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CallRefused("invalid", f"The body is not a chat completion call: {error}") from None
        _check_calls(messages)
        _check_reasoning(messages, call.model)
        return ServedCall(
            model=call.model,
            conversation=_conversation(messages),
            streams=call.stream,
            reports_usage=call.stream_options is not None and call.stream_options.include_usage,
            parts=tuple(request_part(bytes(part)) for part in (*call.tools, *call.messages)),
            cache_key=call.prompt_cache_key,
            needs_marks=call.model.startswith(MARKED_MODELS),
            max_tokens=call.max_completion_tokens or call.max_tokens,
        )

    def frames(self, call: ServedCall, answer: ServedAnswer) -> AnswerFrames:
        frames = [_frame(call.model, [{"index": 0, "delta": {}, "finish_reason": answer.reason}])]
        if call.reports_usage:
            frames.append(_frame(call.model, [], usage=_usage(answer.usage)))
        return AnswerFrames(pieces=_piece_frames(answer.pieces, call.model), closing=b"".join((*frames, _DONE)))

    def whole(self, call: ServedCall, answer: ServedAnswer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for piece in answer.pieces:
            _add_piece(message, piece)
        if details := whole_details(answer.pieces, call.model):
            message["reasoning_details"] = details
        message["content"] = message["content"] or (None if "tool_calls" in message else "")
        return {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 0,
            "model": call.model,
            "usage": _usage(answer.usage),
            "choices": [{"index": 0, "message": message, "finish_reason": answer.reason}],
        }

    def error(self, refusal: CallRefused) -> dict[str, Any]:
        code = _CODES[refusal.kind]
        return {"error": {"message": refusal.message, "type": code, "code": code}}

    def error_frame(self, refusal: CallRefused) -> bytes:
        return b"data: %b\n\n" % to_bytes(self.error(refusal))

    def too_long(self, call: ServedCall, window: int) -> str:
        asked = f"you requested {call.tokens + (call.max_tokens or 0)} tokens" if call.max_tokens else "your messages"
        resulted = "" if call.max_tokens else f" resulted in {call.tokens} tokens"
        return f"This model's maximum context length is {window} tokens. However, {asked}{resulted}."


def _check_calls(messages: Iterable[_Message]) -> None:
    """Refuse calls without results and results without calls, as providers do."""
    unanswered: dict[str, None] = {}
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in unanswered:
                sentence = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                raise CallRefused("invalid", f"{sentence}: '{message.tool_call_id}'.")
            del unanswered[message.tool_call_id]
            continue
        _check_answered(unanswered)
        for call in message.tool_calls or ():
            if not COMMON_ID.fullmatch(call.id) or call.id in unanswered:
                raise CallRefused("invalid", f"Invalid id of a tool call: '{call.id}'.")
            unanswered[call.id] = None
    _check_answered(unanswered)


def _check_answered(unanswered: Mapping[str, None]) -> None:
    if unanswered:
        sentence = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
        raise CallRefused("invalid", f"{sentence} 'tool_call_id': '{next(iter(unanswered))}' has none.")


def _check_reasoning(messages: Iterable[_Message], model: str) -> None:
    """Refuse reasoning that is not what this server sent with the message, for this model."""
    for index, message in enumerate(messages):
        details = message.reasoning_details
        if details is None:
            continue
        calls = tuple((call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
        readable = "".join(entry.get("text") or "" for entry in details if isinstance(entry, dict))
        try:
            check_details(details, SaidMessage(_text(message.content), calls), model)
        except DetailsRefused as error:
            raise CallRefused("invalid", f"Invalid 'messages[{index}]': {error}.") from None
        if message.reasoning_content not in (None, readable):
            raise CallRefused("invalid", f"Invalid 'messages[{index}].reasoning_content': it was changed.")


def _conversation(messages: Iterable[_Message]) -> tuple[ContextMessage, ...]:
    """The conversation as the model in process gets it: the images of tools are part of their results."""
    conversation: list[ContextMessage] = []
    for message in map(_context_message, messages):
        last = conversation[-1] if conversation else None
        if isinstance(message, UserText) and message.text == TOOL_IMAGES and isinstance(last, ToolOutcome):
            conversation[-1] = msgspec.structs.replace(last, images=message.images)
        else:
            conversation.append(message)
    return tuple(conversation)


def _context_message(message: _Message) -> ContextMessage:
    content = message.content
    images: tuple[Image, ...] = ()
    if isinstance(content, list):
        images = tuple(_image(part) for part in content if part.get("type") in ("image_url", "file"))
    text = _text(content)
    match message.role:
        case "system" | "developer":
            return SystemText(text)
        case "assistant":
            calls = message.tool_calls or ()
            uses = (ToolUse(ToolCallId(call.id), call.function.name, call.function.arguments) for call in calls)
            return AssistantTurn(text, tuple(uses))
        case "tool":
            return ToolOutcome(ToolCallId(message.tool_call_id), text)
        case _:
            return UserText(text, images)


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content or ""


def _image(part: dict[str, Any]) -> Image:
    """The image of a data URL. Other URLs are not fetched: they give an image without bytes."""
    match part.get("image_url") or part.get("file"):
        case {"url": str(url)} | {"file_data": str(url)} | str(url) if url.startswith("data:"):
            media_type, _, data = url.removeprefix("data:").partition(";base64,")
            return Image(media_type=media_type, data=image_bytes(data))
        case _:
            return Image(media_type="", data=b"")


def image_bytes(data: str) -> bytes:
    """The decoded bytes; none if they are not base64."""
    try:
        return base64.b64decode(data)
    except ValueError:
        return b""


@lru_cache(maxsize=256)
def _piece_frames(pieces: tuple[Chunk, ...], model: str) -> tuple[bytes, ...]:
    details = detail_pieces(pieces, model)
    deltas = [_delta(piece) for piece in pieces]
    for index, entry in details.items():
        deltas[index]["reasoning_details"] = [entry]
    return tuple(_frame(model, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas)


def _frame(model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}
    return b"data: %b\n\n" % msgspec.json.encode({**chunk, "choices": choices, **more})


def _delta(piece: Chunk) -> dict[str, Any]:
    match piece:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallDelta(index, arguments, "", ""):
            return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
        case ToolCallDelta(index, arguments, tool_call_id, name):
            function = {"name": name, "arguments": arguments}
            return {"tool_calls": [{"index": index, "id": tool_call_id, "type": "function", "function": function}]}
        case ReasoningEnd() | TokenUsage() | Finished():
            return {}


def _add_piece(message: dict[str, Any], piece: Chunk) -> None:
    match piece:
        case TextDelta(text):
            message["content"] += text
        case ReasoningDelta(text):
            message["reasoning_content"] = message.get("reasoning_content", "") + text
        case ToolCallDelta():
            _add_tool_call(message.setdefault("tool_calls", []), piece)
        case ReasoningEnd() | TokenUsage() | Finished():
            pass


def _add_tool_call(calls: list[dict[str, Any]], piece: ToolCallDelta) -> None:
    if piece.index == len(calls):
        function = {"name": piece.name, "arguments": ""}
        calls.append({"id": piece.tool_call_id, "type": "function", "function": function})
    calls[piece.index]["function"]["arguments"] += piece.arguments


def _usage(usage: TokenUsage) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    if usage.cache_read_tokens is not None:
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cache_read_tokens}
    if usage.reasoning_tokens is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.cost_microdollars is not None:
        fields["cost"] = usage.cost_microdollars / 1_000_000
    return fields
