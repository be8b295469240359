"""Anthropic's Messages as the scripted server speaks them. It refuses what the real API refuses, and caches nothing
without marks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.messages_conversation import FILLER
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    SystemText,
    ToolOutcome,
    ToolUse,
    UserText,
)
from holdfast.models.prefix_cache import RequestPart, request_part
from holdfast.models.served_chat import image_bytes
from holdfast.models.served_messages_frames import message, message_frames
from holdfast.models.served_messages_rules import (
    Block,
    Turn,
    check_marks,
    check_settings,
    check_system,
    check_tools,
    check_turns,
    marks_in,
    turns_of,
)
from holdfast.models.served_protocol import AnswerFrames, CallRefused, RefusalKind, ServedAnswer, ServedCall

_ERRORS: Final[dict[RefusalKind, str]] = {
    "invalid": "invalid_request_error",
    "unauthorized": "authentication_error",
    "rate_limited": "rate_limit_error",
    "too_large": "invalid_request_error",
    "context_exceeded": "invalid_request_error",
    "overloaded": "overloaded_error",
    "unavailable": "api_error",
}


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that the API knows. It refuses every other."""

    model: str
    max_tokens: int
    messages: list[Any]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    stream: bool = False
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    metadata: Any = None
    output_config: Any = None
    service_tier: Any = None
    speed: Any = None
    stop_sequences: Any = None
    tool_choice: Any = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class ServedMessages:
    """The protocol of Anthropic's Messages."""

    name: Final = "Anthropic Messages"
    path: Final = "/messages"
    malformed: Final = b'{"type":"message","content":[{"type":"text","te'
    malformed_frame: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"del\n\n'

    def key(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")

    def read(self, body: bytes, headers: Mapping[str, str]) -> ServedCall:
        if not headers.get("anthropic-version"):
            raise CallRefused("invalid", "anthropic-version: header is required")
        try:
            call = msgspec.json.decode(body, type=_Call)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CallRefused("invalid", f"The body is not a call of Messages: {error}") from None
        system = [{"type": "text", "text": call.system}] if isinstance(call.system, str) else call.system or []
        turns = _checked(call, system)
        resumed = turns.pop()[1] if turns[-1][0] == "assistant" else None
        return ServedCall(
            model=call.model,
            conversation=(*(SystemText(block["text"]) for block in system), *_conversation(turns)),
            streams=call.stream,
            parts=tuple(_parts(call, system, [*turns, ("assistant", resumed)] if resumed else turns)),
            needs_marks=True,
            max_tokens=call.max_tokens,
            may_pause=True,
            resumed=None if resumed is None else _said(resumed),
            shows_reasoning=(call.thinking or {}).get("type") != "disabled",
        )

    def frames(self, call: ServedCall, answer: ServedAnswer) -> AnswerFrames:
        return message_frames(call, answer)

    def whole(self, call: ServedCall, answer: ServedAnswer) -> dict[str, Any]:
        return message(call, answer)

    def error(self, refusal: CallRefused) -> dict[str, Any]:
        error = {"type": _ERRORS[refusal.kind], "message": refusal.message}
        return {"type": "error", "error": error, "request_id": "req_scripted"}

    def error_frame(self, refusal: CallRefused) -> bytes:
        return b"event: error\ndata: %b\n\n" % to_bytes(self.error(refusal))

    def too_long(self, call: ServedCall, window: int) -> str:
        if call.tokens <= window and call.max_tokens:
            sizes = f"{call.tokens} + {call.max_tokens} > {window}"
            return f"input length and `max_tokens` exceed context limit: {sizes}, decrease input length or `max_tokens`"
        return f"prompt is too long: {max(call.tokens, window + 1)} tokens > {window} maximum"


def _checked(call: _Call, system: Sequence[Any]) -> list[Turn]:
    fields = msgspec.to_builtins(call)
    kind = check_settings(fields)
    check_tools(call.tools or ())
    check_system(system)
    check_marks(marks_in(fields))
    turns = turns_of(call.messages)
    check_turns(turns, thinking=kind)
    return turns


def _parts(call: _Call, system: Sequence[Any], turns: Sequence[Turn]) -> list[RequestPart]:
    """What the model reads, one part for each block: a mark looks back over blocks."""
    parts = [request_part(to_bytes(part)) for part in (*(call.tools or ()), *system)]
    # Another way of thinking parts the messages from those that are cached, but not the tools and the system text.
    parts.append(RequestPart(to_bytes([call.thinking, call.tool_choice]), is_setting=True))
    for role, blocks in turns:
        for block in blocks:
            part = request_part(to_bytes(block))
            parts.append(msgspec.structs.replace(part, encoded=b"%b %b" % (role.encode(), part.encoded)))
    if call.cache_control is not None:
        parts[-1] = msgspec.structs.replace(parts[-1], is_marked=True)
    return parts


def _conversation(turns: Iterable[Turn]) -> list[ContextMessage]:
    """The conversation as the model in process gets it."""
    conversation: list[ContextMessage] = []
    for role, blocks in turns:
        if role == "assistant":
            conversation.append(_answer(blocks))
        else:
            conversation += _user_messages(blocks)
    return conversation


def _answer(blocks: Iterable[Block]) -> AssistantTurn:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = (block for block in blocks if block["type"] == "tool_use")
    uses = (ToolUse(ToolCallId(call["id"]), call["name"], to_bytes(call["input"]).decode()) for call in calls)
    return AssistantTurn(text, tuple(uses))


def _user_messages(blocks: Iterable[Block]) -> list[ContextMessage]:
    messages: list[ContextMessage] = []
    for block in blocks:
        last = messages[-1] if messages else None
        match block:
            case {"type": "tool_result", "tool_use_id": tool_use_id}:
                content = block.get("content", "")
                inner = [{"type": "text", "text": content}] if isinstance(content, str) else content
                text = "".join(part["text"] for part in inner if part["type"] == "text")
                messages.append(ToolOutcome(ToolCallId(tool_use_id), text, tuple(_images(inner))))
            case {"type": "image" | "document"} if isinstance(last, UserText):
                messages[-1] = UserText(last.text, (*last.images, *_images([block])))
            case {"type": "image" | "document"}:
                messages.append(UserText("", tuple(_images([block]))))
            case {"text": str(text)} if text != FILLER:
                messages.append(UserText(text))
            case _:
                pass
    return messages


def _images(blocks: Iterable[Block]) -> list[Image]:
    sources = [block["source"] for block in blocks if block["type"] in ("image", "document")]
    return [
        Image(media_type=source.get("media_type", ""), data=image_bytes(source.get("data", ""))) for source in sources
    ]


def _said(blocks: Iterable[Block]) -> str:
    return "".join(block.get("text", "") + block.get("thinking", "") for block in blocks).rstrip()
