"""Where an answer begins and ends: legs follow from the log alone, and together they are the whole. Pure."""

from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.event import Event
from holdfast.events.ids import MessageId, Position, RequestId
from holdfast.events.message import AssistantMessage, Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.events.request import ExternalToolCompleted, PermissionCompleted
from holdfast.events.session import SessionInfo
from holdfast.live.live import Delta
from holdfast.server.ai_sdk.chunks import UiChunk, plain
from holdfast.server.ai_sdk.leg import BEGINNING, Leg, TurnFinder, WholeTurn
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.reader import Reading, as_read
from tests.wire.ai_sdk.logs import (
    TURN,
    asked,
    attempted,
    call,
    ended,
    gave,
    handed_out,
    log,
    readings,
    reduced,
    said,
    started,
    step,
    step_ended,
    text,
    thought,
    tool_started,
    typed,
    types,
    used,
    waits,
)

RECORD = SessionInfo(info_type="note", message="Somebody looked.")


def approved(request_id: str, call_id: str) -> PermissionCompleted:
    request = asked(call_id, request_id)
    return PermissionCompleted(request_id=request.request_id, tool_call_id=request.tool_call_id, decision="approved")


TWO_WAITS = log(
    *(started(), typed(), step(), said(thought("Hm."), text("I need"), call("create", '{"path":"a"}'))),
    *(used(input_tokens=1, output_tokens=1), tool_started("create"), asked(), waits("request-1"), RECORD),
    *(approved("request-1", "call-1"), attempted(), gave("Written."), step_ended()),
    *(step(2), said(text("And"), call("locate", "{}", "call-2"), number=2), used(input_tokens=2, output_tokens=2)),
    *(tool_started("locate", "call-2"), handed_out("locate", "call-2", "request-2"), waits("request-2")),
    *(ExternalToolCompleted(request_id=RequestId("request-2")), gave('{"at":1}', "call-2"), step_ended(2)),
    *(step(3), said(text("Done."), number=3), step_ended(3), ended()),
)
FIRST_WAIT, SECOND_WAIT = (
    event.position for event in TWO_WAITS if event.body in (waits("request-1"), waits("request-2"))
)


def leg(
    events: Iterable[Event], after: Position = BEGINNING, answered: frozenset[RequestId] = frozenset()
) -> list[UiChunk]:
    found = Leg(UiProjection(), after=after, answered=answered)
    chunks = found.take(readings(events))
    assert found.is_over
    return chunks


def plain_types(chunks: Iterable[UiChunk]) -> list[str]:
    return types(plain(chunk) for chunk in chunks)


def test_a_leg_ends_exactly_where_the_turn_starts_to_wait() -> None:
    found = Leg(UiProjection())
    for event in TWO_WAITS:
        chunks = found.take(as_read(event))
        assert found.is_over == (event.position >= FIRST_WAIT)
        assert bool(chunks and plain_types(chunks)[-1] == "finish") == (event.position == FIRST_WAIT)


def test_the_next_leg_tells_only_what_is_new_of_the_same_message() -> None:
    second = leg(TWO_WAITS, FIRST_WAIT)
    assert [getattr(second[0], "message_id", None), plain_types(second)] == [
        TURN,
        [
            *("start", "tool-output-available", "start-step", "text-start", "text-delta", "text-end"),
            *("tool-input-start", "tool-input-delta", "tool-input-available", "finish-step", "finish"),
        ],
    ]
    third = plain_types(leg(TWO_WAITS, SECOND_WAIT))
    assert third == [
        *("start", "tool-output-available", "start-step", "text-start", "text-delta", "text-end"),
        *("finish-step", "finish"),
    ]


def test_legs_one_after_the_other_are_the_whole() -> None:
    legs = [*leg(TWO_WAITS), *leg(TWO_WAITS, FIRST_WAIT), *leg(TWO_WAITS, SECOND_WAIT)]
    assert reduced(legs) == reduced(WholeTurn(UiProjection()).take(readings(TWO_WAITS)))


def test_the_whole_has_one_start_and_one_finish_and_every_step_is_finished_once() -> None:
    whole = plain_types(WholeTurn(UiProjection()).take(readings(TWO_WAITS)))
    assert [whole.count(kind) for kind in ("start", "finish", "start-step", "finish-step")] == [1, 1, 3, 3]


def test_the_whole_says_what_it_waits_for_until_the_turn_goes_on() -> None:
    whole = WholeTurn(UiProjection())
    waited = [(event.position, whole.waits_for) for event in TWO_WAITS if whole.take(as_read(event)) is not None]
    waiting = {position for position, request_ids in waited if request_ids}
    assert waiting == {FIRST_WAIT, FIRST_WAIT + 1, SECOND_WAIT}, "a record is no sign that it goes on"


def test_the_same_leg_is_streamed_however_late_it_is_asked_for() -> None:
    early = leg(event for event in TWO_WAITS if event.position <= SECOND_WAIT)
    assert early == leg(TWO_WAITS)


def test_a_wait_for_what_was_answered_is_no_end() -> None:
    """Two answers are accepted one after the other, and the turn may look in between."""
    turn = log(
        *(started(), typed(), step(), said(call("create", call_id="call-1"), call("create", call_id="call-2"))),
        *(asked("call-1", "request-1"), asked("call-2", "request-2"), waits("request-1", "request-2")),
        *(approved("request-1", "call-1"), attempted("call-1"), gave("One.", "call-1"), waits("request-2")),
        *(approved("request-2", "call-2"), attempted("call-2"), gave("Two.", "call-2"), step_ended()),
        *(step(2), said(text("Done."), number=2), step_ended(2), ended()),
    )
    both = frozenset({RequestId("request-1"), RequestId("request-2")})
    assert plain_types(leg(turn, Position(7), both))[-1] == "finish"
    assert plain_types(leg(turn, Position(7), both)).count("tool-output-available") == 2
    assert plain_types(leg(turn, Position(7))).count("tool-output-available") == 1


def test_a_message_is_found_in_the_turn_that_it_starts() -> None:
    finding = TurnFinder(MessageId("user-1"))
    turn = [RECORD, *(event.body for event in TWO_WAITS)]
    found = finding.take(readings(log(*turn)))
    assert finding.is_found
    assert not finding.came_late
    assert isinstance(found[0], Event)
    assert found[0].body == started()


def test_a_message_that_joined_a_turn_late_is_found_there() -> None:
    finding = TurnFinder(MessageId("user-2"))
    turn = log(
        *(started(), typed(), step(), said(text("One.")), step_ended()),
        *(typed("And this", "user-2", "steering"), step(2), said(text("Two."), number=2), step_ended(2), ended()),
    )
    assert finding.take(readings(turn[:5])) == []
    finding.take(readings(turn[5:]))
    assert finding.came_late


# Whatever the pieces, the message is the same

WORDS = st.text(min_size=1, max_size=30)


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    kinds = draw(st.lists(st.sampled_from(("text", "reasoning", "tool_call")), min_size=1, max_size=5))
    made: list[Block] = []
    for number, kind in enumerate(kinds):
        words = draw(WORDS)
        match kind:
            case "text":
                made.append(TextBlock(text=words))
            case "reasoning":
                made.append(ReasoningBlock(text=words))
            case _:
                made.append(call("add", draw(st.sampled_from(("", "{}", words))), f"call-{number}"))
    return made


def in_pieces(body: AssistantMessage, cuts: Iterator[int]) -> Iterator[Reading]:
    """A message as it comes while it is written."""
    for number, block in enumerate(body.blocks):
        words = block.arguments if isinstance(block, ToolCallBlock) else block.text
        kind = (
            "tool_call" if isinstance(block, ToolCallBlock) else "text" if isinstance(block, TextBlock) else "reasoning"
        )
        about = {"tool_call_id": block.tool_call_id, "name": block.name} if isinstance(block, ToolCallBlock) else {}
        at = 0
        while at < len(words) or at == 0:
            end = min(len(words), at + next(cuts))
            offset = len(words[:at].encode())
            yield Delta(
                message_id=body.message_id,
                block=number,
                kind=kind,  # type: ignore[arg-type]
                offset=offset,
                text=words[at:end],
                **about,
            )
            at = max(end, 1)


@given(blocks(), st.integers(1, 7), st.booleans())
def test_a_message_in_pieces_is_the_message(found: list[Block], piece: int, interrupted: bool) -> None:
    body = said(*found, interrupted=interrupted)
    results = [
        gave("It did.", block.tool_call_id, "interrupted" if interrupted else None)
        for block in found
        if isinstance(block, ToolCallBlock)
    ]
    turn = log(started(), typed(), step(), body, *results, step_ended(), ended())

    def live() -> Iterator[Reading]:
        for event in turn:
            if event.body is body:
                yield from in_pieces(body, iter(lambda: piece, None))
            yield event

    assert reduced(WholeTurn(UiProjection()).take(live())) == reduced(WholeTurn(UiProjection()).take(readings(turn)))
