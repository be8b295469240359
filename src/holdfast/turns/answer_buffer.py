"""Buffers a model's answer as it streams in: chunks become blocks, and the segments that are not yet durable.

Segments follow the order of the blocks and never return to an earlier block, so that a reader's place in a message is
one block and one byte offset in it. Where a provider interleaves several tool calls, the later calls are held back.
"""

from collections.abc import Callable, Iterable

import msgspec

from holdfast.events import codec
from holdfast.events.ids import MessageId, ToolCallId
from holdfast.events.message import Block, BlockKind, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.models.model import Chunk, Finished, ReasoningDelta, ReasoningEnd, TextDelta, TokenUsage, ToolCallDelta
from holdfast.store.store import Segment


class _OpenBlock:
    """A block that may still grow. `unwritten` holds the text that is in no segment yet."""

    __slots__ = (
        "began",
        "ended",
        "is_whole",
        "kind",
        "name",
        "opaque",
        "pieces",
        "tool_call_id",
        "unwritten",
        "written_bytes",
    )

    def __init__(self, kind: BlockKind, tool_call_id: str = "", name: str = "", *, began: float = 0.0) -> None:
        self.kind: BlockKind = kind
        self.began = began
        self.ended: float | None = None
        self.tool_call_id = tool_call_id
        self.name = name
        self.opaque = ""
        self.pieces: list[str] = []
        self.unwritten: list[str] = []
        self.written_bytes = 0
        self.is_whole = False
        """The block can't grow any more: another block has begun and, for a tool call, its arguments are complete."""


class AnswerBuffer:
    """The answer of one model call so far. Text, reasoning and tool calls keep the order in which they arrived."""

    def __init__(
        self, message_id: MessageId, attempt: int, new_id: Callable[[], str], monotonic: Callable[[], float]
    ) -> None:
        self.message_id = message_id
        self.attempt = attempt
        self.usage: TokenUsage | None = None
        self.finish_reason = ""
        self.characters = 0
        """The size of all that is kept of the answer, the opaque parts of reasoning included."""
        self._new_id = new_id
        self._monotonic = monotonic
        self._blocks: list[_OpenBlock] = []
        self._calls: dict[int, _OpenBlock] = {}
        self._next_block = 0

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks from the model."""
        for chunk in chunks:
            match chunk:
                case TextDelta(text=text):
                    if text:
                        self._append(self._last_of_kind("text"), text)
                case ReasoningDelta(text=text):
                    if text:
                        self._append(self._last_of_kind("reasoning"), text)
                case ReasoningEnd(opaque=opaque):
                    self._end_reasoning(opaque)
                case ToolCallDelta():
                    self._append(self._call_block(chunk), chunk.arguments)
                case TokenUsage():
                    self.usage = chunk
                case Finished(reason=reason):
                    self.finish_reason = reason
                    self._close_reasoning()

    def take_segments(self) -> list[Segment]:
        """Take the text that arrived since the last call, as segments to commit."""
        segments = []
        for number in range(self._next_block, len(self._blocks)):
            block = self._blocks[number]
            if block.kind == "tool_call" and not block.name:
                break
            self._next_block = number
            if block.unwritten and (segment := self._segment(number, block)):
                segments.append(segment)
            if not block.is_whole:
                break
        return segments

    def _segment(self, number: int, block: _OpenBlock) -> Segment | None:
        text = "".join(block.unwritten)
        block.unwritten.clear()
        if not text:
            return None
        offset = block.written_bytes
        block.written_bytes = offset + len(text.encode())
        return Segment(
            message_id=self.message_id,
            attempt=self.attempt,
            block=number,
            offset=offset,
            kind=block.kind,
            text=text,
            tool_call_id=block.tool_call_id,
            name=block.name,
        )

    def blocks(self) -> tuple[Block, ...]:
        return tuple(_finished_block(block) for block in self._blocks)

    def calls(self) -> list[ToolCallBlock]:
        return [block for block in self.blocks() if isinstance(block, ToolCallBlock)]

    def text(self) -> str:
        return "".join("".join(block.pieces) for block in self._blocks if block.kind == "text")

    def _append(self, block: _OpenBlock, text: str) -> None:
        if block.is_whole:
            return
        text = _clean(text)
        block.pieces.append(text)
        block.unwritten.append(text)
        self.characters += len(text)
        if block is not self._blocks[-1]:
            block.is_whole = _is_complete(block)

    def _open(self, block: _OpenBlock) -> _OpenBlock:
        if self._blocks:
            self._blocks[-1].is_whole = _is_complete(self._blocks[-1])
            self._close_reasoning()
        self._blocks.append(block)
        return block

    def _last_of_kind(self, kind: BlockKind) -> _OpenBlock:
        if not self._blocks or self._blocks[-1].kind != kind or self._blocks[-1].opaque:
            began = self._monotonic() if kind == "reasoning" else 0.0
            return self._open(_OpenBlock(kind, began=began))
        return self._blocks[-1]

    def _end_reasoning(self, opaque: str) -> None:
        """Close the block of reasoning. What follows is another block, even if it is reasoning too."""
        block = self._last_of_kind("reasoning")
        block.opaque = opaque
        self.characters += len(opaque)
        self._close_reasoning()
        block.is_whole = True

    def _close_reasoning(self) -> None:
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.kind == "reasoning" and last.ended is None:
            last.ended = self._monotonic()

    def _call_block(self, chunk: ToolCallDelta) -> _OpenBlock:
        block = self._calls.get(chunk.index)
        if block is None:
            used_ids = {call.tool_call_id for call in self._calls.values()}
            provided_id = _clean(chunk.tool_call_id)
            is_usable = provided_id and provided_id not in used_ids
            block = self._open(_OpenBlock("tool_call", provided_id if is_usable else f"call_{self._new_id()}"))
            self._calls[chunk.index] = block
            self.characters += len(block.tool_call_id)
        if not block.name:
            block.name = _clean(chunk.name)
            self.characters += len(block.name)
        return block


def _clean(text: str) -> str:
    cleaned: str = text if text.isascii() else codec.without_surrogates(text)
    return cleaned


def _is_complete(block: _OpenBlock) -> bool:
    """Whether a block that is not the last one is complete. Text is; a tool call is once its arguments are JSON."""
    if block.kind != "tool_call":
        return True
    text = "".join(block.pieces)
    if not text.rstrip().endswith("}"):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _duration_ms(block: _OpenBlock) -> int:
    return 0 if block.ended is None else max(0, round((block.ended - block.began) * 1000))


def _finished_block(block: _OpenBlock) -> Block:
    text = "".join(block.pieces)
    match block.kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            return ReasoningBlock(text=text, duration_ms=_duration_ms(block), opaque=block.opaque)
        case "tool_call":
            return ToolCallBlock(tool_call_id=ToolCallId(block.tool_call_id), name=block.name, arguments=text)


def blocks_of(segments: Iterable[Segment]) -> tuple[Block, ...]:
    """Join committed segments of a message, which readers may have seen, into its blocks. They may be given in any
    order."""
    first: dict[int, Segment] = {}
    texts: dict[int, list[str]] = {}
    for segment in sorted(segments, key=lambda each: (each.block, each.offset)):
        first.setdefault(segment.block, segment)
        texts.setdefault(segment.block, []).append(segment.text)
    return tuple(_shown_block(first[number], "".join(texts[number])) for number in sorted(first))


def _shown_block(first: Segment, text: str) -> Block:
    match first.kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            return ReasoningBlock(text=text)
        case "tool_call":
            return ToolCallBlock(tool_call_id=ToolCallId(first.tool_call_id), name=first.name, arguments=text)
