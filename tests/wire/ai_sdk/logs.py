"""Turns as logs have them, written down by hand, and the chunks that are told of them."""

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, RequestId, ToolCallId, TurnId
from holdfast.events.message import (
    AssistantMessage,
    Block,
    Delivery,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    Usage,
    UserMessage,
)
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.tool import ToolAttempted, ToolCompleted, ToolError, ToolStarted
from holdfast.events.turn import EndReason, StepEnded, StepStarted, TurnEnded, TurnStarted, TurnWaiting
from holdfast.live.live import Delta
from holdfast.server.ai_sdk.chunks import UiChunk, plain
from holdfast.server.ai_sdk.leg import WholeTurn
from holdfast.server.ai_sdk.message import Reducer, UiMessage
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.tool_parts import Release
from holdfast.server.reader import Reading, as_read

TURN = TurnId("turn-1")


def log(*bodies: Body, first: int = 1) -> list[Event]:
    return [
        Event(Position(number), EventId(f"event-{number}"), 1_000 * number, body)
        for number, body in enumerate(bodies, first)
    ]


def started(*, woken: bool = False) -> TurnStarted:
    return TurnStarted(turn_id=TURN, woken=woken)


def typed(text: str = "Hello", message_id: str = "user-1", delivery: Delivery = "idle") -> UserMessage:
    return UserMessage(message_id=MessageId(message_id), turn_id=TURN, content=text, delivery=delivery)


def step(number: int = 1) -> StepStarted:
    return StepStarted(turn_id=TURN, step=number, message_id=MessageId(f"message-{number}"))


def step_ended(number: int = 1) -> StepEnded:
    return StepEnded(turn_id=TURN, step=number)


def said(*blocks: Block, number: int = 1, finish: str = "stop", interrupted: bool = False) -> AssistantMessage:
    return AssistantMessage(
        message_id=MessageId(f"message-{number}"), blocks=blocks, finish_reason=finish, interrupted=interrupted
    )


def text(words: str) -> TextBlock:
    return TextBlock(text=words)


def thought(words: str) -> ReasoningBlock:
    return ReasoningBlock(text=words)


def call(name: str, arguments: str = "{}", call_id: str = "call-1") -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=ToolCallId(call_id), name=name, arguments=arguments)


def tool_started(name: str, call_id: str = "call-1") -> ToolStarted:
    return ToolStarted(tool_call_id=ToolCallId(call_id), tool_name=name, arguments="{}")


def attempted(call_id: str = "call-1") -> ToolAttempted:
    return ToolAttempted(tool_call_id=ToolCallId(call_id), attempt=1)


def gave(content: str, call_id: str = "call-1", error: ToolError | None = None) -> ToolCompleted:
    return ToolCompleted(tool_call_id=ToolCallId(call_id), success=error is None, content=content, error=error)


def asked(call_id: str = "call-1", request_id: str = "request-1") -> PermissionRequested:
    return PermissionRequested(
        request_id=RequestId(request_id),
        tool_call_id=ToolCallId(call_id),
        tool_name="create",
        kind="write",
        subject="notes.txt",
        rule="write(notes.txt)",
    )


def handed_out(name: str, call_id: str = "call-1", request_id: str = "request-1") -> ExternalToolRequested:
    return ExternalToolRequested(
        request_id=RequestId(request_id), tool_call_id=ToolCallId(call_id), tool_name=name, arguments="{}"
    )


def questioned(call_id: str = "call-1", request_id: str = "request-1") -> UserInputRequested:
    return UserInputRequested(request_id=RequestId(request_id), tool_call_id=ToolCallId(call_id), question="Which?")


def waits(*request_ids: str) -> TurnWaiting:
    return TurnWaiting(
        turn_id=TURN, reason="requests", request_ids=tuple(RequestId(found) for found in request_ids or ("request-1",))
    )


def used(**figures: int) -> Usage:
    return Usage(message_id=MessageId("message-1"), model="scripted", **figures)


def ended(reason: EndReason = "completed") -> TurnEnded:
    return TurnEnded(turn_id=TURN, reason=reason, duration_ms=7)


def delta(words: str, offset: int = 0, block: int = 0, number: int = 1) -> Delta:
    return Delta(message_id=MessageId(f"message-{number}"), block=block, kind="text", offset=offset, text=words)


def readings(events: Iterable[Event]) -> Iterator[Reading]:
    for event in events:
        yield from as_read(event)


def told(events: Iterable[Event], release: Release = 6) -> list[dict[str, Any]]:
    """The whole turn, as its clients are told."""
    whole = WholeTurn(UiProjection(release))
    return [plain(chunk) for chunk in whole.take(readings(events))]


def types(chunks: Iterable[dict[str, Any]]) -> list[str]:
    return [str(chunk["type"]) for chunk in chunks]


def reduced(chunks: Iterable[UiChunk]) -> UiMessage:
    reducer = Reducer()
    for chunk in chunks:
        reducer.take(chunk)
    assert reducer.message is not None
    return reducer.message
