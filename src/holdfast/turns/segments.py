"""Turns the committed segments of a message in flight, which readers may have seen, back into blocks."""

from collections.abc import Iterable

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.store.store import Segment


def blocks_of(segments: Iterable[Segment]) -> tuple[Block, ...]:
    """Join segments, given in any order, into the blocks of their message."""
    first: dict[int, Segment] = {}
    texts: dict[int, list[str]] = {}
    for segment in sorted(segments, key=lambda each: (each.block, each.offset)):
        first.setdefault(segment.block, segment)
        texts.setdefault(segment.block, []).append(segment.text)
    return tuple(_block(first[number], "".join(texts[number])) for number in sorted(first))


def _block(first: Segment, text: str) -> Block:
    match first.kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            return ReasoningBlock(text=text)
        case "tool_call":
            return ToolCallBlock(tool_call_id=ToolCallId(first.tool_call_id), name=first.name, arguments=text)
