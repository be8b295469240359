"""The blocks of one answer of Anthropic's Messages, as they come and as they go back.

Thinking goes back with its signature, and a block of a kind that nobody here knows as it came: both become reasoning
with an opaque part. All blocks together continue a paused answer.
"""

from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.lenient_decoder import decode_leniently, parse
from holdfast.models.messages_parts import opaque_of_thinking
from holdfast.models.messages_shapes import BlockDelta, MessageBlock, block_in
from holdfast.models.model import ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta
from holdfast.models.streamed_answer import ChunkBatch

MAX_KEPT_CHARACTERS: Final = 8_000_000
"""The most that is kept to continue a paused answer: far more than any model writes."""


class _OpenBlock:
    """A block that may still grow."""

    def __init__(self, raw: bytes, shape: MessageBlock, call: int | None) -> None:
        self.raw = raw
        self.shape = shape
        self.kind = shape.type
        self.call = call
        self.signature = shape.signature or ""
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class AnswerBlocks:
    """Takes the blocks of an answer and adds its chunks to a batch."""

    def __init__(self, batch: ChunkBatch) -> None:
        self._batch = batch
        self._open: dict[int, _OpenBlock] = {}
        self._all: list[_OpenBlock] = []
        self._characters = 0
        self._calls = 0
        self.has_text = False

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    @property
    def are_kept(self) -> bool:
        """Whether all blocks are kept: they were not too much."""
        return self._characters <= MAX_KEPT_CHARACTERS

    def begin(self, index: int, raw: bytes) -> bool:
        """Begin a block. Whether it could be read."""
        try:
            shape = block_in(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                shape = decode_leniently(raw, MessageBlock)
            except ValueError:
                return False
        self._begin(index, raw, shape)
        return bool(shape.type)

    def grow(self, index: int, delta: BlockDelta) -> bool:
        """Add a piece to a block. Whether it belongs to one."""
        block = self._open.get(index)
        if block is None and delta.type in ("text_delta", "thinking_delta"):
            kind = delta.type.removesuffix("_delta")
            block = self._begin(index, b"{}", MessageBlock(kind))
        if block is None:
            return False
        match delta.type, block.kind:
            case "text_delta", "text":
                self._show(block, TextDelta, delta.text or "")
                self.has_text = True
            case "thinking_delta", "thinking":
                self._show(block, ReasoningDelta, delta.thinking or "")
            case "signature_delta", "thinking":
                block.signature = delta.signature or ""
            case "input_json_delta", "tool_use" if block.call is not None:
                self._show(block, block.call, delta.partial_json or "")
            case "input_json_delta", _:
                self._keep(block, delta.partial_json or "")
            case (("text_delta" | "thinking_delta" | "signature_delta"), _):
                return False
            case _:
                pass  # Citations, and what a later version of the API adds.
        return True

    def end(self, index: int) -> bool:
        """End a block. Whether it had begun."""
        block = self._open.pop(index, None)
        if block is not None:
            self._end(block)
        return block is not None

    def end_all(self) -> None:
        """End the blocks that the provider left open."""
        for index in list(self._open):
            self.end(index)

    def content(self) -> list[Any]:
        """All blocks as an answer to continue."""
        return [value for value in map(_returned, self._all) if value is not None]

    def _begin(self, index: int, raw: bytes, shape: MessageBlock) -> _OpenBlock:
        self.end(index)
        block = _OpenBlock(raw, shape, self._calls if shape.type == "tool_use" else None)
        self._open[index] = block
        self._characters += len(raw)
        if self.are_kept:
            self._all.append(block)
        if block.call is not None:
            self._calls += 1
            self._batch.append(ToolCallDelta(block.call, "", shape.id or "", shape.name or ""))
        elif shape.type == "text" and shape.text:
            self._show(block, TextDelta, shape.text)
            self.has_text = True
        elif shape.type == "thinking" and shape.thinking:
            self._show(block, ReasoningDelta, shape.thinking)
        return block

    def _show(self, block: _OpenBlock, kind: type[TextDelta] | type[ReasoningDelta] | int, text: str) -> None:
        if text:
            self._batch.add(kind, text)
            self._keep(block, text)

    def _keep(self, block: _OpenBlock, text: str) -> None:
        self._characters += len(text)
        if self.are_kept:
            block.pieces.append(text)

    def _end(self, block: _OpenBlock) -> None:
        match block.kind:
            case "text" | "":
                pass
            case "thinking":
                if block.signature:
                    self._batch.append(ReasoningEnd(opaque_of_thinking(block.signature)))
            case "tool_use":
                # An answer that does not stream has the arguments here.
                if block.call is not None and block.shape.input and not block.pieces:
                    self._show(block, block.call, to_bytes(block.shape.input).decode())
            case _:
                if self.are_kept and (value := _returned(block)) is not None:
                    self._batch.append(ReasoningEnd(to_bytes(value).decode()))


def _returned(block: _OpenBlock) -> dict[str, Any] | None:
    """The block as the provider takes it back; None if there is nothing to return."""
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text} if block.text.strip() else None
        case "thinking":
            thinking = {"type": "thinking", "thinking": block.text, "signature": block.signature}
            return thinking if block.signature else None
        case _:
            return _with_input(block)


def _with_input(block: _OpenBlock) -> dict[str, Any] | None:
    try:
        value = parse(block.raw)
        arguments = parse(block.text.encode()) if block.pieces else None
    except (ValueError, UnicodeError):
        return None
    if not isinstance(value, dict) or not block.kind:
        return None
    return {**value, "input": arguments} if isinstance(arguments, dict) else value
