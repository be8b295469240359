"""Calls a model and reads its answer."""

from collections.abc import Iterable

from holdfast.events.ids import ToolCallId
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    Finished,
    Model,
    ModelError,
    ModelRequest,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolUse,
    UserText,
)


def asking(text: str = "hello", *, stream: bool = True) -> ModelRequest:
    return ModelRequest(messages=(UserText(text),), stream=stream)


async def answer_of(model: Model, request: ModelRequest) -> list[Chunk]:
    return [chunk async for batch in model.stream(request) for chunk in batch]


async def failed_answer_of(model: Model, request: ModelRequest) -> tuple[list[Chunk], ModelError]:
    """The chunks before the failure, and the failure."""
    chunks: list[Chunk] = []
    try:
        async for batch in model.stream(request):
            chunks += batch
    except ModelError as error:
        return chunks, error
    raise AssertionError("the answer was whole")


def text_of(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


def reasoning_of(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, ReasoningDelta))


def usage_of(chunks: Iterable[Chunk]) -> TokenUsage | None:
    return next((chunk for chunk in chunks if isinstance(chunk, TokenUsage)), None)


def tool_calls_of(chunks: Iterable[Chunk]) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of each call."""
    calls: list[tuple[str, str, str]] = []
    for chunk in chunks:
        if isinstance(chunk, ToolCallDelta):
            if chunk.index == len(calls):
                calls.append(("", "", ""))
            tool_call_id, name, arguments = calls[chunk.index]
            calls[chunk.index] = (tool_call_id + chunk.tool_call_id, name + chunk.name, arguments + chunk.arguments)
    return calls


def joined(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The answer with consecutive pieces joined, so that two ways of splitting it can be compared."""
    whole: list[Chunk] = []
    for chunk in chunks:
        match whole[-1] if whole else None, chunk:
            case TextDelta(before), TextDelta(after):
                whole[-1] = TextDelta(before + after)
            case ReasoningDelta(before), ReasoningDelta(after):
                whole[-1] = ReasoningDelta(before + after)
            case ToolCallDelta(index, before, tool_call_id, name), ToolCallDelta(same, after, "", "") if index == same:
                whole[-1] = ToolCallDelta(index, before + after, tool_call_id, name)
            case _:
                whole.append(chunk)
    return whole


def finish_of(chunks: list[Chunk]) -> str:
    last = chunks[-1]
    assert isinstance(last, Finished)
    assert sum(isinstance(chunk, Finished) for chunk in chunks) == 1
    return last.reason


def turn_of(chunks: Iterable[Chunk], source: str) -> AssistantTurn:
    """The answer as the next call has it: its reasoning with opaque parts at its place."""
    chunks = list(chunks)
    reasoning: list[Reasoning] = []
    thought, text_before, calls_before = "", 0, 0
    for chunk in chunks:
        match chunk:
            case ReasoningDelta(text):
                thought += text
            case ReasoningEnd(opaque):
                reasoning.append(Reasoning(thought, opaque, text_before, calls_before))
                thought = ""
            case TextDelta(text):
                text_before += len(text)
            case ToolCallDelta(index):
                calls_before = index + 1
            case TokenUsage() | Finished():
                pass
    uses = (ToolUse(ToolCallId(tool_call_id), name, written) for tool_call_id, name, written in tool_calls_of(chunks))
    return AssistantTurn(text_of(chunks), tuple(uses), tuple(reasoning), source)
