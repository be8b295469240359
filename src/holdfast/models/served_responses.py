"""OpenAI's Responses as the scripted server speaks them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.model import (
    Chunk,
    ContextMessage,
    ReasoningDelta,
    ReasoningEnd,
    SystemText,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    UserText,
)
from holdfast.models.prefix_cache import RequestPart
from holdfast.models.sealed_facts import fingerprint
from holdfast.models.served_protocol import AnswerFrames, CallRefused, RefusalKind, ServedAnswer, ServedCall
from holdfast.models.served_responses_input import (
    NAME,
    InputRefused,
    decoded,
    following_facts,
    read_input,
    sealed_reasoning,
)

MIN_OUTPUT_TOKENS: Final = 16

MAX_CACHE_KEY_CHARACTERS: Final = 64

ENCRYPTED: Final = "reasoning.encrypted_content"

_CODES: Final[dict[RefusalKind, tuple[str, str | None]]] = {
    "invalid": ("invalid_request_error", None),
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "rate_limited": ("requests", "rate_limit_exceeded"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "context_exceeded": ("invalid_request_error", "context_length_exceeded"),
    "overloaded": ("server_error", "server_is_overloaded"),
    "unavailable": ("server_error", "server_error"),
}
"""The type and the code of each refusal."""

_CONSTANT: Final[dict[str, Any]] = {
    "object": "response",
    "created_at": 0,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
"""The fields of a response that are always the same here."""

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that this server knows. Those that the script can't obey are accepted and ignored."""

    model: str
    input: str | list[msgspec.Raw]
    instructions: str | None = None
    tools: list[msgspec.Raw] = []
    stream: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: int | None = None
    prompt_cache_key: str | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None


class ResponsesCall(ServedCall, frozen=True, kw_only=True):
    encrypts_reasoning: bool = False
    """Whether the items of reasoning are wanted in a form that can be sent back."""


class _OutputItem(msgspec.Struct, frozen=True):
    """An item of an answer, with the pieces that it is sent in."""

    value: dict[str, Any]
    pieces: tuple[Chunk, ...]


class ServedResponses:
    """The protocol of OpenAI's Responses. It stores nothing, and remembers every beginning of a request by itself."""

    name: Final = "Responses"
    path: Final = "/responses"
    malformed: Final = b'{"type":"response.output_text.delta","delta":'
    malformed_frame: Final = b"event: response.output_text.delta\ndata: " + malformed + b"\n\n"

    def key(self, headers: Mapping[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def read(self, body: bytes, headers: Mapping[str, str]) -> ServedCall:
        call = decoded(body, _Call, "body")
        _check(call)
        instructions = [call.instructions] if call.instructions else []
        items: Sequence[msgspec.Raw] = [] if isinstance(call.input, str) else call.input
        said = [call.input] if isinstance(call.input, str) else []
        conversation: tuple[ContextMessage, ...] = (
            *map(SystemText, instructions),
            *map(UserText, said),
            *read_input(items, model=call.model),
        )
        read = (*map(bytes, call.tools), *map(str.encode, instructions), *map(str.encode, said), *map(bytes, items))
        return ResponsesCall(
            model=call.model,
            conversation=conversation,
            streams=bool(call.stream),
            parts=tuple(map(RequestPart, read)),
            cache_key=call.prompt_cache_key or "",
            max_tokens=call.max_output_tokens,
            encrypts_reasoning=ENCRYPTED in (call.include or ()),
        )

    def frames(self, call: ServedCall, answer: ServedAnswer) -> AnswerFrames:
        items = _output(call, answer.pieces)
        events = _Events()
        begun = _response(call, answer, [], status="in_progress", usage=None)
        opening = events.encode(
            {"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}
        )
        pieces = tuple(frame for index, item in enumerate(items) for frame in _item_frames(events, index, item))
        response = self.whole(call, answer)
        closing = events.encode({"type": f"response.{response['status']}", "response": response})
        return AnswerFrames(opening=opening, pieces=pieces, closing=closing)

    def whole(self, call: ServedCall, answer: ServedAnswer) -> dict[str, Any]:
        output = [item.value for item in _output(call, answer.pieces)]
        status = "incomplete" if answer.reason in _INCOMPLETE else "completed"
        return _response(call, answer, output, status=status, usage=_usage(answer.usage))

    def error(self, refusal: CallRefused) -> dict[str, Any]:
        kind, code = _CODES[refusal.kind]
        param = refusal.param if isinstance(refusal, InputRefused) else None
        code = refusal.code if isinstance(refusal, InputRefused) else code
        return {"error": {"message": refusal.message, "type": kind, "param": param, "code": code}}

    def error_frame(self, refusal: CallRefused) -> bytes:
        """The error, and then the failed response: clients wait for either."""
        kind, code = _CODES[refusal.kind]
        error = {"code": code or kind, "message": refusal.message}
        failed = {"id": "resp_scripted", "object": "response", "status": "failed", "error": error, "output": []}
        return _Events().encode(
            {"type": "error", **error, "param": None}, {"type": "response.failed", "response": {**_CONSTANT, **failed}}
        )

    def too_long(self, call: ServedCall, window: int) -> str:
        return (
            f"Your input exceeds the context window of this model. Its maximum context length is {window} tokens, and "
            f"your input has {call.tokens}."
        )


class _Events:
    """Numbers the events of a stream."""

    def __init__(self) -> None:
        self._number = 0

    def encode(self, *events: dict[str, Any]) -> bytes:
        return b"".join(map(self._encode, events))

    def _encode(self, event: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        data = to_bytes({**event, "sequence_number": number})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)


def _check(call: _Call) -> None:
    names = [decoded(raw, _Tool, f"tools[{index}]").name for index, raw in enumerate(call.tools)]
    for index, name in enumerate(names):
        if not NAME.fullmatch(name) or name in names[:index]:
            raise InputRefused(f"Invalid 'tools[{index}].name': '{name}'.", f"tools[{index}].name")
    if call.previous_response_id is not None:
        message = f"Previous response with id '{call.previous_response_id}' not found."
        raise InputRefused(message, "previous_response_id", code="previous_response_not_found")
    if call.max_output_tokens is not None and call.max_output_tokens < MIN_OUTPUT_TOKENS:
        message = f"Invalid 'max_output_tokens': expected a value >= {MIN_OUTPUT_TOKENS}."
        raise InputRefused(message, "max_output_tokens", code="integer_below_min_value")
    if len(call.prompt_cache_key or "") > MAX_CACHE_KEY_CHARACTERS:
        message = f"Invalid 'prompt_cache_key': expected at most {MAX_CACHE_KEY_CHARACTERS} characters."
        raise InputRefused(message, "prompt_cache_key", code="string_above_max_length")
    if unknown := set(call.include or ()) - {ENCRYPTED}:
        raise InputRefused(f"Invalid value in 'include': {sorted(unknown)}.", "include")


def _output(call: ServedCall, pieces: Sequence[Chunk]) -> list[_OutputItem]:
    """The items of an answer. The last is made first: reasoning is bound to the item after it."""
    groups = [tuple(group) for _, group in groupby(enumerate(pieces), key=_item_key)]
    said = fingerprint(call.model, *(part.encoded.decode("utf-8", "replace") for part in call.parts))
    items: list[_OutputItem] = []
    after: dict[str, Any] | None = None
    for index in reversed(range(len(groups))):
        group = tuple(piece for _, piece in groups[index])
        after = _item(call, f"{said}{index}", group, after)
        items.append(_OutputItem(after, group))
    return items[::-1]


def _item_key(numbered: tuple[int, Chunk]) -> tuple[str, int]:
    """The same for consecutive pieces of one item."""
    number, piece = numbered
    match piece:
        case ReasoningDelta():
            return ("reasoning", 0)
        case ToolCallDelta(index):
            return ("function_call", index)
        case ReasoningEnd():
            return ("redacted", number)
        case _:
            return ("message", 0)


def _item(call: ServedCall, name: str, pieces: tuple[Chunk, ...], after: dict[str, Any] | None) -> dict[str, Any]:
    match pieces[0]:
        case ReasoningDelta() | ReasoningEnd():
            text = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
            summary = [{"type": "summary_text", "text": text}] if text else []
            following = following_facts(after)
            sealed = sealed_reasoning(f"rs_{name}", [text] if text else [], model=call.model, following=following)
            encrypted = sealed if isinstance(call, ResponsesCall) and call.encrypts_reasoning else None
            return {"id": f"rs_{name}", "type": "reasoning", "summary": summary, "encrypted_content": encrypted}
        case ToolCallDelta(_, _, tool_call_id, tool):
            arguments = "".join(piece.arguments for piece in pieces if isinstance(piece, ToolCallDelta))
            fields = {"call_id": tool_call_id, "name": tool, "arguments": arguments}
            return {"id": f"fc_{name}", "type": "function_call", "status": "completed", **fields}
        case _:
            text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
            part = _text_part(text)
            shown = {"status": "completed", "role": "assistant", "content": [part]}
            return {"id": f"msg_{name}", "type": "message", **shown}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_frames(events: _Events, index: int, item: _OutputItem) -> Iterator[bytes]:
    """A frame for each piece: the first also begins the item, the last also ends it."""
    begin, end = _edges(index, item.value)
    last = len(item.pieces) - 1
    for at, piece in enumerate(item.pieces):
        shown = _delta(index, item.value["id"], piece)
        yield events.encode(*(begin if at == 0 else ()), *shown, *(end if at == last else ()))


def _edges(index: int, value: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events before and after the pieces of an item."""
    item: dict[str, Any] = {"output_index": index, "item_id": value["id"]}
    added = {"type": "response.output_item.added", "output_index": index}
    done = {"type": "response.output_item.done", "output_index": index, "item": value}
    match value:
        case {"type": "reasoning", "summary": []}:
            return [{**added, "item": {**value, "encrypted_content": ""}}], [done]
        case {"type": "reasoning", "summary": [part]}:
            item["summary_index"] = 0
            kind, empty = "response.reasoning_summary", {**value, "summary": [], "encrypted_content": ""}
            begin = [{"type": f"{kind}_part.added", **item, "part": {**part, "text": ""}}]
            end = [
                {"type": f"{kind}_text.done", **item, "text": part["text"]},
                {"type": f"{kind}_part.done", **item, "part": part},
            ]
        case {"type": "message", "content": [part]}:
            item["content_index"] = 0
            empty = {**value, "content": [], "status": "in_progress"}
            begin = [{"type": "response.content_part.added", **item, "part": _text_part("")}]
            end = [
                {"type": "response.output_text.done", **item, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **item, "part": part},
            ]
        case _:
            empty = {**value, "arguments": "", "status": "in_progress"}
            begin = []
            finished = {"name": value["name"], "arguments": value["arguments"]}
            end = [{"type": "response.function_call_arguments.done", **item, **finished}]
    return [{**added, "item": empty}, *begin], [*end, done]


def _delta(index: int, item_id: str, piece: Chunk) -> list[dict[str, Any]]:
    item: dict[str, Any] = {"output_index": index, "item_id": item_id}
    match piece:
        case TextDelta(text):
            event = {"type": "response.output_text.delta", "content_index": 0, "delta": text, "logprobs": []}
        case ReasoningDelta(text):
            event = {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": text}
        case ToolCallDelta(_, arguments) if arguments:
            event = {"type": "response.function_call_arguments.delta", "delta": arguments}
        case _:
            return []
    return [{**event, **item}]


def _response(
    call: ServedCall, answer: ServedAnswer, output: Iterable[dict[str, Any]], *, status: str, usage: Any
) -> dict[str, Any]:
    reason = _INCOMPLETE.get(answer.reason) if status == "incomplete" else None
    return {
        **_CONSTANT,
        "id": "resp_scripted",
        "status": status,
        "model": call.model,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
        "usage": usage,
    }


def _usage(usage: TokenUsage) -> dict[str, Any]:
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    fields: dict[str, Any] = {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written,
    }
    if usage.cost_microdollars is not None:
        fields["cost"] = usage.cost_microdollars / 1_000_000
    return fields
