"""What was committed of the message in flight, and so may have been seen: segments to blocks."""

from collections.abc import Iterable

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.store.store import Segment


def blocks_of(segments: Iterable[Segment]) -> tuple[Block, ...]:
    """The blocks that these segments make up, in order."""
    first: dict[int, Segment] = {}
    texts: dict[int, list[str]] = {}
    for segment in sorted(segments, key=lambda found: (found.block, found.offset)):
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
