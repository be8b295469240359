"""An answer as it comes in: chunks to blocks, and to the segments that are not yet durable."""

from collections.abc import Callable, Iterable

from holdfast.events import codec
from holdfast.events.ids import MessageId, ToolCallId
from holdfast.events.message import Block, BlockKind, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.models.model import Chunk, Finished, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
from holdfast.store.store import Segment


class _OpenBlock:
    __slots__ = ("fresh", "kind", "name", "pieces", "tool_call_id", "written")

    def __init__(self, kind: BlockKind, tool_call_id: str = "", name: str = "") -> None:
        self.kind: BlockKind = kind
        self.tool_call_id = tool_call_id
        self.name = name
        self.pieces: list[str] = []
        self.fresh: list[str] = []
        self.written = 0


class Answer:
    """One model call's answer so far. Text, reasoning and tool calls keep the order in which they came."""

    def __init__(self, message_id: MessageId, attempt: int, new_id: Callable[[], str]) -> None:
        self.message_id = message_id
        self.attempt = attempt
        self.usage: TokenUsage | None = None
        self.finish_reason = ""
        self.characters = 0
        self._new_id = new_id
        self._blocks: list[_OpenBlock] = []
        self._calls: dict[int, _OpenBlock] = {}
        self._touched: dict[int, _OpenBlock] = {}

    def take(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            match chunk:
                case TextDelta(text=text):
                    self._append(self._tail("text"), text)
                case ReasoningDelta(text=text):
                    self._append(self._tail("reasoning"), text)
                case ToolCallDelta():
                    self._append(self._call(chunk), chunk.arguments)
                case TokenUsage():
                    self.usage = chunk
                case Finished(reason=reason):
                    self.finish_reason = reason

    def take_segments(self) -> list[Segment]:
        """What came since the last time, to be committed."""
        taken = []
        for number, block in sorted(self._touched.items()):
            text = "".join(block.fresh)
            block.fresh.clear()
            if not text:
                continue
            offset = block.written
            taken.append(
                Segment(
                    message_id=self.message_id,
                    attempt=self.attempt,
                    block=number,
                    offset=offset,
                    kind=block.kind,
                    text=text,
                    tool_call_id=block.tool_call_id,
                    name=block.name,
                )
            )
            block.written = offset + len(text.encode())
        self._touched.clear()
        return taken

    def blocks(self) -> tuple[Block, ...]:
        return tuple(_closed(block) for block in self._blocks)

    def calls(self) -> list[ToolCallBlock]:
        return [block for block in self.blocks() if isinstance(block, ToolCallBlock)]

    def text(self) -> str:
        return "".join("".join(block.pieces) for block in self._blocks if block.kind == "text")

    def _append(self, block: _OpenBlock, text: str) -> None:
        if not text.isascii():
            text = codec.without_surrogates(text)
        block.pieces.append(text)
        block.fresh.append(text)
        self.characters += len(text)
        self._touched[self._number(block)] = block

    def _number(self, block: _OpenBlock) -> int:
        last = len(self._blocks) - 1
        return last if self._blocks[last] is block else self._blocks.index(block)

    def _tail(self, kind: BlockKind) -> _OpenBlock:
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_OpenBlock(kind))
        return self._blocks[-1]

    def _call(self, chunk: ToolCallDelta) -> _OpenBlock:
        block = self._calls.get(chunk.index)
        if block is None:
            taken = {found.tool_call_id for found in self._calls.values()}
            known = chunk.tool_call_id and chunk.tool_call_id not in taken
            block = _OpenBlock("tool_call", chunk.tool_call_id if known else f"call_{self._new_id()}", chunk.name)
            self._calls[chunk.index] = block
            self._blocks.append(block)
        elif chunk.name and not block.name:
            block.name = chunk.name
        return block


def _closed(block: _OpenBlock) -> Block:
    text = "".join(block.pieces)
    match block.kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            return ReasoningBlock(text=text)
        case "tool_call":
            return ToolCallBlock(tool_call_id=ToolCallId(block.tool_call_id), name=block.name, arguments=text)
