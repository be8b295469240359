"""When a session has come to rest: by its row and its inbox as one snapshot has them."""

import msgspec
import pytest

from holdfast.events.ids import Key, MessageId, Owner, Position, RequestId, SessionId, TaskId, ToolCallId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    Item,
    Message,
    PermissionAnswer,
    Stop,
    TaskNews,
    ToBackground,
    UnknownItem,
)
from holdfast.events.task import TaskNotice
from holdfast.server.operations.activity import is_settled
from holdfast.store.store import CaughtUp, Row, Status

MESSAGE = Message(message_id=MessageId("m"), text="hello")
ANSWER = Answer(request_id=RequestId("r"), answer_id="a", content=PermissionAnswer(decision="approved"))
STOP = Stop(stop_id="s")
NEWS = TaskNews(notice=TaskNotice(task_id=TaskId("t"), kind="completed", command="make"))
KNOWN = TaskNews(notice=TaskNotice(task_id=TaskId("t"), kind="killed", command="make", silent=True))
TO_BACKGROUND = ToBackground(task_id=TaskId("t"), tool_call_id=ToolCallId("c"))
FUTURE = UnknownItem(kind="from_the_future", payload=msgspec.Raw(b'{"kind":"from_the_future"}'))


def snapshot(status: Status, *items: Item | UnknownItem, held: bool = False) -> CaughtUp:
    row = Row(
        key=Key(Owner("o"), SessionId("s")),
        head=Position(1),
        inbox_tail=len(items),
        status=status,
        turn_id=None,
        title="",
        host=None,
        created_at=0,
        updated_at=0,
        open_requests=0,
        waiting_messages=0,
        held_by="somebody" if held else None,
    )
    inbox = tuple(
        InboxItem(
            sequence=number,
            key=str(number),
            state="accepted",
            outcome="",
            accepted_at=0,
            while_running=False,
            item=item,
        )
        for number, item in enumerate(items)
    )
    return CaughtUp(events=(), segments=(), requests=(), inbox=inbox, row=row, more=False)


@pytest.mark.parametrize(
    ("status", "items", "settled"),
    [
        ("idle", (), True),
        ("idle", (MESSAGE,), False),
        ("running", (), False),
        ("queued", (), False),
        ("waiting", (), True),
        ("waiting", (MESSAGE,), True),
        ("waiting", (ANSWER,), False),
        ("waiting", (MESSAGE, STOP), False),
        ("waiting", (NEWS, KNOWN), True),
        ("waiting", (NEWS, TO_BACKGROUND), False),
        ("queued", (NEWS,), False),
        ("idle", (KNOWN,), True),
        ("idle", (TO_BACKGROUND,), False),
        ("idle", (NEWS, MESSAGE), False),
        ("idle", (FUTURE,), True),
        ("idle", (FUTURE, MESSAGE), False),
        ("waiting", (FUTURE, MESSAGE), True),
        ("waiting", (FUTURE, ANSWER), False),
    ],
)
def test_a_session_rests_when_nothing_that_was_accepted_will_move_it(
    status: Status, items: tuple[Item | UnknownItem, ...], settled: bool
) -> None:
    assert is_settled(snapshot(status, *items)) is settled


def test_news_starts_a_turn_unless_a_holder_left_it_where_it_is() -> None:
    assert not is_settled(snapshot("idle", NEWS, held=True)), "the holder is about to start a turn for it"
    assert is_settled(snapshot("idle", NEWS)), "so many turns were started by news that this waits for a person"
    assert is_settled(snapshot("idle", KNOWN, held=True)), "the model knows it already"
