"""The answers of Anthropic's Messages, as the scripted server writes them: as a stream of events, or as one object."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.model import (
    Chunk,
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from holdfast.models.served_messages_rules import THOUGHT, Block
from holdfast.models.served_protocol import AnswerFrames, ServedAnswer, ServedCall
from holdfast.models.served_thinking import sealed, signature_of

_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "other": "stop_sequence",
    "pause": "pause_turn",
}


def message_frames(call: ServedCall, answer: ServedAnswer) -> AnswerFrames:
    pieces, ending = _piece_frames(_shown(call, answer))
    start = {**message(call, answer), "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**_usage(answer.usage), "output_tokens": 1}
    delta = {"stop_reason": _REASONS[answer.reason], "stop_sequence": _stop_sequence(answer)}
    delta_frame = _frame("message_delta", delta=delta, usage=_usage(answer.usage))
    return AnswerFrames(
        opening=_frame("message_start", message=start) + _frame("ping"),
        pieces=pieces,
        closing=ending + delta_frame + _frame("message_stop"),
    )


def _shown(call: ServedCall, answer: ServedAnswer) -> tuple[Chunk, ...]:
    if call.shows_reasoning:
        return answer.pieces
    return tuple(piece for piece in answer.pieces if not isinstance(piece, (ReasoningDelta, ReasoningEnd)))


def message(call: ServedCall, answer: ServedAnswer) -> dict[str, Any]:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": _whole_blocks(_shown(call, answer)),
        "stop_reason": _REASONS[answer.reason],
        "stop_sequence": _stop_sequence(answer),
        "usage": _usage(answer.usage),
    }


def _stop_sequence(answer: ServedAnswer) -> str | None:
    return "scripted" if answer.reason == "other" else None


def _usage(usage: TokenUsage) -> dict[str, Any]:
    """The provider counts what it read from its cache, and wrote into it, apart from the rest of the input."""
    read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    fields: dict[str, Any] = {
        "input_tokens": max((usage.input_tokens or 0) - read - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.output_tokens or 0,
    }
    if usage.reasoning_tokens is not None:
        fields["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return fields


def _whole_blocks(pieces: Sequence[Chunk]) -> list[Block]:
    blocks: list[Block] = []
    arguments: list[str] = []
    for kind, piece in _kinds(pieces):
        if kind is not None:
            blocks.append(_block(kind, piece, thought=_begins_with_thinking(pieces)))
            arguments.append("")
        match piece:
            case TextDelta(text):
                blocks[-1]["text"] += text
            case ReasoningDelta(text):
                blocks[-1]["thinking"] += text
                blocks[-1]["signature"] = signature_of(blocks[-1]["thinking"])
            case ToolCallDelta():
                arguments[-1] += piece.arguments
            case _:
                pass
    for block, written in zip(blocks, arguments, strict=True):
        if block["type"] == "tool_use":
            block["input"] = _input(written)
    return blocks


def _input(written: str) -> Any:
    try:
        return msgspec.json.decode(written or "{}")
    except msgspec.DecodeError:
        return {"arguments": written}


@lru_cache(maxsize=256)
def _piece_frames(pieces: tuple[Chunk, ...]) -> tuple[tuple[bytes, ...], bytes]:
    """The frames of each piece, and those that end the last block."""
    frames: list[bytes] = []
    index = -1
    ending = b""
    thinking: list[str] = []
    for kind, piece in _kinds(pieces):
        opening = b""
        if kind is not None:
            index += 1
            block = _block(kind, piece, thought=_begins_with_thinking(pieces))
            opening = ending + _frame("content_block_start", index=index, content_block=block)
            thinking.clear()
        if isinstance(piece, ReasoningDelta):
            thinking.append(piece.text)
        frames.append(opening + _delta_frame(index, piece))
        ending = _block_ending(index, thinking)
    return tuple(frames), ending


def _block_ending(index: int, thinking: Sequence[str]) -> bytes:
    stop = _frame("content_block_stop", index=index)
    if not thinking:
        return stop
    delta = {"type": "signature_delta", "signature": signature_of("".join(thinking))}
    return _frame("content_block_delta", index=index, delta=delta) + stop


def _kinds(pieces: Iterable[Chunk]) -> Iterable[tuple[str | None, Chunk]]:
    """Each piece, with the type of the block that it begins; None if it continues one."""
    last: object = None
    for piece in pieces:
        match piece:
            case TextDelta():
                kind: str = "text"
                block: object = "text"
            case ReasoningDelta():
                kind = block = "thinking"
            case ToolCallDelta():
                kind, block = "tool_use", piece.index
            case _:
                kind, block = "redacted_thinking", piece
        yield (kind if block != last or kind == "redacted_thinking" else None), piece
        last = block


def _begins_with_thinking(pieces: Sequence[Chunk]) -> bool:
    return bool(pieces) and isinstance(pieces[0], (ReasoningDelta, ReasoningEnd))


def _block(kind: str, piece: Chunk, *, thought: bool) -> Block:
    match piece:
        case ToolCallDelta():
            tool_use_id = piece.tool_call_id.replace("call_", "toolu_", 1) + (THOUGHT if thought else "")
            return {"type": kind, "id": tool_use_id, "name": piece.name, "input": {}}
        case ReasoningDelta():
            return {"type": kind, "thinking": "", "signature": ""}
        case ReasoningEnd(opaque):
            return {"type": kind, "data": sealed(msgspec.json.decode(opaque, type=str))}
        case TextDelta() | TokenUsage() | Finished():
            return {"type": "text", "text": ""}


def _delta_frame(index: int, piece: Chunk) -> bytes:
    match piece:
        case TextDelta(text):
            delta = {"type": "text_delta", "text": text}
        case ReasoningDelta(text):
            delta = {"type": "thinking_delta", "thinking": text}
        case ToolCallDelta(_, arguments):
            delta = {"type": "input_json_delta", "partial_json": arguments}
        case _:
            return b""
    return _frame("content_block_delta", index=index, delta=delta)


def _frame(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_bytes({"type": kind, **fields}))
