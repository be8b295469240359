"""Builders for logs and inboxes, so that a test reads: a log in, a state out."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import msgspec

from holdfast.events import message, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import ContextMessage
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    Item,
    Message,
    PermissionAnswer,
    QuestionAnswer,
    Stop,
    TaskNews,
    ToBackground,
    ToolAnswer,
    UnknownItem,
)
from holdfast.events.message import Block, TextBlock, ToolCallBlock
from holdfast.events.quote import unmarked
from holdfast.events.request import PermissionAsk
from holdfast.events.session import SessionStarted
from holdfast.events.task import NoticeKind, TaskNotice
from holdfast.session.actions import Action, Append
from holdfast.session.bounds import Bounds
from holdfast.session.decide import decide
from holdfast.session.fold import fold
from holdfast.session.history import context
from holdfast.session.inputs import CallFacts, Inputs
from holdfast.session.state import Phase, State, next_phase

TURN = TurnId("t1")
STARTED = SessionStarted(session_id=SessionId("s"), producer="test", start_time=0)
HERE = CallFacts(where="here")
ASKS = CallFacts(where="here", ask=PermissionAsk(kind="write", subject="a.txt"))


def at(bodies: Iterable[Body], after: int = 0) -> list[Event]:
    """Make a log of these bodies, one second apart."""
    return [
        Event(Position(number), EventId(f"e{number}"), number * 1000, body)
        for number, body in enumerate(bodies, after + 1)
    ]


def state_of(*bodies: Body) -> State:
    """Fold a log into a state; asserts that the runtime could have written the log."""
    phase = Phase.IDLE
    for body in bodies:
        phase = next_phase(phase, body)
    return fold(at(bodies))


def plain_context(state: State) -> tuple[ContextMessage, ...]:
    """The context that the model is sent, without the marks of its origins."""
    return tuple(msgspec.structs.replace(sent, text=unmarked(sent.text)) for sent in context(state))


def user(text: str = "Hi", *, id: str = "u1", delivery: message.Delivery = "idle", added: str = "") -> Body:
    return message.UserMessage(message_id=MessageId(id), turn_id=TURN, content=text, delivery=delivery, added=added)


def begun(text: str = "Hi", *, unattended: bool = False) -> list[Body]:
    """A log whose first model call, message m1, is under way."""
    return [STARTED, turn.TurnStarted(turn_id=TURN, unattended=unattended), user(text), step(1)]


def step(number: int, *, last: bool = False) -> Body:
    return turn.StepStarted(turn_id=TURN, step=number, message_id=MessageId(f"m{number}"), last=last)


def step_ended(number: int) -> Body:
    return turn.StepEnded(turn_id=TURN, step=number)


def turn_ended(reason: turn.EndReason = "completed") -> Body:
    return turn.TurnEnded(turn_id=TURN, reason=reason)


def said(*blocks: Block, id: str = "m1", interrupted: bool = False) -> Body:
    return message.AssistantMessage(message_id=MessageId(id), blocks=blocks, interrupted=interrupted)


def text(words: str) -> Block:
    return TextBlock(text=words)


def call(id: str = "c1", name: str = "write", arguments: str = "{}") -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=ToolCallId(id), name=name, arguments=arguments)


def result(id: str = "c1", content: str = "done") -> Body:
    return tool.ToolCompleted(tool_call_id=ToolCallId(id), success=True, content=content)


def attempted(id: str = "c1", attempt: int = 1) -> Body:
    return tool.ToolAttempted(tool_call_id=ToolCallId(id), attempt=attempt)


def failed(
    *,
    attempt: int = 1,
    id: str = "m1",
    code: str = "model_unavailable",
    retryable: bool = True,
    retry_after_ms: int | None = None,
) -> message.CallFailed:
    return message.CallFailed(
        message_id=MessageId(id),
        attempt=attempt,
        error_code=code,
        message="Not now.",
        retryable=retryable,
        retry_after_ms=retry_after_ms,
    )


# The inbox


def put(*items: Item | UnknownItem, while_running: bool = False) -> tuple[InboxItem, ...]:
    """Make an inbox of these items, accepted in this order."""
    return tuple(
        InboxItem(
            sequence=number,
            key=f"key{number}",
            state="accepted",
            outcome="",
            accepted_at=0,
            while_running=while_running,
            item=item,
        )
        for number, item in enumerate(items, 1)
    )


def sends(words: str, *, id: str = "u2", enqueue: bool = False, unattended: bool = False, added: str = "") -> Message:
    delivery: Any = "enqueue" if enqueue else "steer"
    return Message(message_id=MessageId(id), text=words, delivery=delivery, unattended=unattended, added=added)


def stops(turn_id: str | None = TURN) -> Stop:
    return Stop(stop_id="x", turn_id=TurnId(turn_id) if turn_id else None)


def answers(content: PermissionAnswer | ToolAnswer | QuestionAnswer, request: str = "r1") -> Answer:
    return Answer(request_id=RequestId(request), answer_id="a", content=content, answered_by="ann")


def deciding(
    *,
    inbox: tuple[InboxItem, ...] = (),
    shown: tuple[Block, ...] = (),
    running: Iterable[str] = (),
    facts: Mapping[str, CallFacts] | None = None,
    bounds: Bounds | None = None,
    **more: Any,
) -> Inputs:
    """Inputs whose new ids are n1, n2, …"""
    numbers = count(1)
    return Inputs(
        new_id=lambda: f"n{next(numbers)}",
        now=100_000,
        bounds=bounds or Bounds(),
        inbox=inbox,
        shown=shown,
        running=frozenset(running),
        facts={ToolCallId(id): fact for id, fact in (facts or {}).items()},
        **more,
    )


def decided(state: State, inputs: Inputs | None = None) -> Action:
    """Decide; asserts that the events of the decision are legal."""
    action = decide(state, inputs or deciding())
    if isinstance(action, Append):
        phase = state.phase
        for body in action.events:
            phase = next_phase(phase, body)
    return action


def appended(state: State, inputs: Inputs | None = None) -> Append:
    action = decided(state, inputs)
    assert isinstance(action, Append), action
    return action


def after(state: State, append: Append) -> State:
    """The state after a decision is committed."""
    return fold(at(append.events, after=state.head), state)


def kinds(append: Append) -> list[str]:
    return [type(body).__name__ for body in append.events]


# Tasks


def task_started(id: str = "t9", *, call: str = "c1", command: str = "make", description: str = "") -> Body:
    return task.TaskStarted(
        task_id=TaskId(id),
        tool_call_id=ToolCallId(call),
        command=command,
        description=description,
        output_file=f"/out/{id}",
    )


def notice(id: str = "t9", kind: NoticeKind = "completed", *, command: str = "make", **more: Any) -> TaskNotice:
    return TaskNotice(task_id=TaskId(id), kind=kind, command=command, **more)


def notified(id: str = "t9", kind: NoticeKind = "completed", **more: Any) -> Body:
    return task.TaskNotified(notice=notice(id, kind, **more))


def news(id: str = "t9", kind: NoticeKind = "completed", **more: Any) -> TaskNews:
    return TaskNews(notice=notice(id, kind, **more))


def to_background(id: str = "t9", *, call: str = "c1") -> ToBackground:
    return ToBackground(task_id=TaskId(id), tool_call_id=ToolCallId(call))
