"""Pages of messages, from any log: they never begin inside a tool group, show something, and leave no holes."""

from collections.abc import AsyncIterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, ToolCallId, TurnId
from holdfast.events.message import AssistantMessage, TextBlock, ToolCallBlock, UserMessage
from holdfast.events.session import SessionError
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import StepEnded, StepStarted, TurnEnded, TurnStarted
from holdfast.protocol.message import Failed, FromAssistant, FromTool, FromUser, MessageView, TextView, ToolCallView
from holdfast.server.http.message_page import MessagePage, events_before, page_of

TURN = TurnId("t")


def step(number: int, calls: int, text: str) -> list[Body]:
    """One model call and its tools."""
    message_id = MessageId(f"m{number}")
    names = [ToolCallId(f"{number}.{call}") for call in range(calls)]
    blocks = (*([TextBlock(text=text)] if text else ()), *(_call(name) for name in names))
    return [
        StepStarted(turn_id=TURN, step=number, message_id=message_id),
        AssistantMessage(message_id=message_id, blocks=blocks),
        *(ToolStarted(tool_call_id=name, tool_name="view", arguments="{}") for name in names),
        *(ToolCompleted(tool_call_id=name, success=True, content="done") for name in names),
        StepEnded(turn_id=TURN, step=number),
    ]


def _call(name: ToolCallId) -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=name, name="view", arguments="{}")


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    bodies: list[Body] = []
    for _ in range(draw(st.integers(0, 4))):
        bodies += [TurnStarted(turn_id=TURN)]
        bodies += [UserMessage(message_id=MessageId("u"), turn_id=TURN, content="hi", delivery="idle")]
        for _ in range(draw(st.integers(0, 4))):
            bodies += step(len(bodies), draw(st.integers(0, 4)), draw(st.sampled_from(["", "text"])))
        if draw(st.booleans()):
            bodies += [SessionError(error_type="x", message="y")]
        bodies += [TurnEnded(turn_id=TURN, reason="completed")]
    return numbered(bodies)


async def backwards(log: Sequence[Event]) -> AsyncIterator[Event]:
    for event in reversed(log):
        yield event


async def pages(log: Sequence[Event], limit: int) -> list[MessagePage]:
    """From the newest to the oldest."""
    found = [await page_of(backwards(log), limit)]
    while found[-1].before is not None:
        older = events_before(backwards(log), Position(found[-1].before))
        found.append(await page_of(older, limit))
    return found


@given(log=logs(), limit=st.integers(1, 8))
async def test_pages_put_together_are_the_whole_without_holes_or_repetition(log: list[Event], limit: int) -> None:
    (whole,) = await pages(log, 10_000)
    apart = [message for page in reversed(await pages(log, limit)) for message in page.messages]
    assert apart == list(whole.messages)
    assert [message.position for message in apart] == sorted({message.position for message in apart})


@given(log=logs(), limit=st.integers(1, 8))
async def test_a_page_never_begins_between_a_call_and_the_message_that_made_it(log: list[Event], limit: int) -> None:
    for page in await pages(log, limit):
        assert not page.messages or not isinstance(page.messages[0], FromTool)


@given(log=logs(), limit=st.integers(1, 8))
async def test_a_page_has_at_least_so_many_messages_and_something_to_see(log: list[Event], limit: int) -> None:
    for page in await pages(log, limit):
        if page.before is not None:
            assert len(page.messages) >= limit
            assert any(map(is_seen, page.messages))


def is_seen(message: MessageView) -> bool:
    if isinstance(message, FromAssistant):
        return any(isinstance(block, TextView) for block in message.blocks)
    return isinstance(message, FromUser | Failed)


def numbered(bodies: Sequence[Body]) -> list[Event]:
    return [Event(Position(number), EventId(str(number)), 0, body) for number, body in enumerate(bodies, start=1)]


def silent_turn(*, steps: int, calls: int) -> list[Event]:
    """A turn in which the model only calls tools, and says nothing until its end."""
    bodies: list[Body] = [TurnStarted(turn_id=TURN)]
    bodies += [UserMessage(message_id=MessageId("u"), turn_id=TURN, content="hi", delivery="idle")]
    for number in range(1, steps + 1):
        bodies += step(number, calls, "")
    return numbered(bodies)


async def test_a_page_that_is_extended_as_far_as_may_be_begins_with_the_message_that_made_its_calls() -> None:
    log = silent_turn(steps=60, calls=5)
    found = await pages(log, 50)
    assert len(found) > 1
    for page in found:
        assert isinstance(page.messages[0], FromAssistant | FromUser)
        assert without_owner(page) == set()
    apart = [message for page in reversed(found) for message in page.messages]
    assert apart == list((await page_of(backwards(log), 10_000)).messages)


async def test_a_page_does_not_begin_with_an_error_that_stands_among_the_results_of_a_step() -> None:
    started, answered, *results, ended = step(1, 3, "text")
    bodies = [started, answered, *results[:4], SessionError(error_type="x", message="between"), *results[4:], ended]
    for limit in range(1, 5):
        newest, *_ = await pages(numbered([TurnStarted(turn_id=TURN), *bodies]), limit)
        assert without_owner(newest) == set()


async def test_a_result_whose_call_is_nowhere_extends_a_page_no_further_than_to_its_step() -> None:
    lost = ToolCompleted(tool_call_id=ToolCallId("lost"), success=False, content="cut", error="interrupted")
    log = numbered([TurnStarted(turn_id=TURN), *step(1, 1, "text"), *step(2, 0, "more")[:-1], lost])
    newest, *_ = await pages(log, 1)
    assert [type(message) for message in newest.messages] == [FromAssistant, FromTool]


def without_owner(page: MessagePage) -> set[str]:
    """The calls whose results are on a page without the message that made them."""
    results = {message.tool_call_id for message in page.messages if isinstance(message, FromTool)}
    for message in page.messages:
        if isinstance(message, FromAssistant):
            results -= {block.tool_call_id for block in message.blocks if isinstance(block, ToolCallView)}
    return results


async def test_a_page_is_not_extended_without_end() -> None:
    bodies: list[Body] = [TurnStarted(turn_id=TURN)]
    for number in range(300):
        bodies += step(number, 1, "")
    log = numbered(bodies)
    newest, *_ = await pages(log, 10)
    assert len(newest.messages) == 210
    assert newest.before is not None
