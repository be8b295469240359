"""A rewind does not undo the outcomes of tasks that were started before its position."""

from holdfast.events.body import Body
from holdfast.events.context import UserText
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.message import UserMessage
from holdfast.events.session import SessionStarted, Truncated
from holdfast.events.task import TaskNotice, TaskNotified, TaskStarted
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.session.fold import dump, fold, restore
from holdfast.session.history import context

TURN = TurnId("turn")


def log(*bodies: Body) -> list[Event]:
    return [Event(Position(at), EventId(str(at)), 0, body) for at, body in enumerate(bodies, start=1)]


def told(task: str) -> TaskNotified:
    return TaskNotified(notice=TaskNotice(task_id=TaskId(task), kind="completed", command=f"make {task}"))


def started(task: str) -> TaskStarted:
    return TaskStarted(task_id=TaskId(task), tool_call_id=ToolCallId("call"), command=f"make {task}")


def said(text: str) -> UserMessage:
    return UserMessage(message_id=MessageId(text), turn_id=TURN, content=text, delivery="idle")


EVENTS = log(
    SessionStarted(session_id=SessionId("s"), producer="test", start_time=0),
    TurnStarted(turn_id=TURN),
    said("first"),
    started("before"),
    TurnEnded(turn_id=TURN, reason="completed"),
    TurnStarted(turn_id=TURN),
    said("second"),
    started("after"),
    TurnEnded(turn_id=TURN, reason="completed"),
    told("before"),
    told("after"),
    Truncated(kept=Position(5)),
)


def test_news_of_a_task_survives_a_rewind_to_a_position_after_its_start() -> None:
    for cut in range(len(EVENTS)):
        state = fold(EVENTS[cut:], restore(dump(fold(EVENTS[:cut]))))
        texts = [message.text for message in context(state) if isinstance(message, UserText)]
        assert len(texts) == 2
        assert texts[0] == "first"
        assert "make before" in texts[1]
        assert not any("make after" in text or "second" in text for text in texts)
        assert state.tasks == {}


def test_a_second_rewind_still_knows_when_the_task_started() -> None:
    again = Event(Position(13), EventId("13"), 0, Truncated(kept=Position(3)))
    texts = [message.text for message in context(fold([*EVENTS, again])) if isinstance(message, UserText)]
    assert texts == ["first"]
