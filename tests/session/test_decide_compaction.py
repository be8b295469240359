"""When a compaction starts, what it keeps, and when there is nothing to be gained by one."""

import msgspec
import pytest

from holdfast.events import message
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted, CompactionTrigger, MessagePinned
from holdfast.events.context import SystemText, UserText
from holdfast.events.ids import CompactionId, MessageId, Position
from holdfast.events.inbox import CancelCompaction, Compact
from holdfast.events.message import ReasoningBlock, Usage
from holdfast.events.session import Mode, ModeChanged, SettingsChanged, Truncated
from holdfast.session.actions import Append, CallModel, Pause, Release
from holdfast.session.bounds import Bounds
from holdfast.session.compaction import verbatim
from holdfast.session.fold import MAX_VERBATIM, TOO_LONG
from holdfast.session.history import anchor, context, conversation
from holdfast.session.inputs import COMPACTION
from holdfast.session.permissions import MAX_SESSION_RULES
from holdfast.session.policy import COPILOT
from holdfast.session.state import ModelReply, Person, State, Turn, people_in
from tests.session.logs import (
    STARTED,
    TURN,
    after,
    begun,
    call,
    decided,
    deciding,
    failed,
    kinds,
    put,
    result,
    said,
    state_of,
    step,
    step_ended,
    task_started,
    text,
    turn_ended,
    user,
)

WINDOW = 10_000
TOKEN = "word"
"""One token, as they are estimated."""


def talked(*, question: int, answer: int) -> list[Body]:
    """A log in the second step of a turn: a question and the result of a call, of so many tokens."""
    return [
        *begun(TOKEN * question),
        said(call()),
        result(content=TOKEN * answer),
        step_ended(1),
        step(2),
    ]


def compacted(
    up_to: int, *, summary: str = "All was said.", kept: tuple[int, ...] = (), trigger: CompactionTrigger = "manual"
) -> list[Body]:
    id = CompactionId("k1")
    return [
        CompactionStarted(compaction_id=id, trigger=trigger, up_to=Position(up_to)),
        CompactionEnded(
            compaction_id=id,
            trigger=trigger,
            success=True,
            up_to=Position(up_to),
            summary=summary,
            verbatim=tuple(map(Position, kept)),
        ),
    ]


def started_by(state: State, **more: object) -> CompactionStarted | None:
    action = decided(state, deciding(**{"window": WINDOW, **more}))  # type: ignore[arg-type]
    bodies = action.events if isinstance(action, Append) else []
    return next((body for body in bodies if isinstance(body, CompactionStarted)), None)


def test_pinned_and_current_messages_are_kept_before_many_short_ones() -> None:
    people = [Person(Position(n), "ok", message_id=MessageId(f"u{n}")) for n in range(1, 2 * MAX_VERBATIM)]
    current = Turn(TURN, 0, message_ids=[MessageId("u2")])
    state = State(history=list(people), pinned=(MessageId("u1"),), turn=current)
    kept = verbatim(state, Position(1_000), deciding(window=200_000))
    assert kept[:2] == (1, 2)
    assert kept[2:] == tuple(range(2 * MAX_VERBATIM - MAX_VERBATIM + 2, 2 * MAX_VERBATIM))
    assert len(kept) == MAX_VERBATIM


def test_a_refused_call_is_shortened_though_its_newest_part_seems_small() -> None:
    """The provider counts more than the estimate does: even what fits the newest part has to go."""
    log = talked(question=7_000, answer=1_500)
    state = state_of(*log, failed(id="m2", code=TOO_LONG, retryable=False))
    started = started_by(state)
    assert started is not None
    assert (started.trigger, started.up_to) == ("too_long", state.head)


def test_a_summary_that_was_made_for_a_larger_window_is_made_again_when_a_call_is_refused() -> None:
    """Nothing stands before the message but the summary, with messages that a larger model had room for."""
    first: list[Body] = [*begun(TOKEN * 9_000), said(text("Yes.")), step_ended(1), turn_ended()]
    shrunk = [*first, *compacted(len(first), kept=(3,))]
    state = state_of(*shrunk, *begun("Go on.")[1:2], user("Go on.", id="u2"), step(1))
    assert not isinstance(decided(state, deciding(window=200_000)), Append)
    refused = after(state, Append(events=[failed(code=TOO_LONG, retryable=False)]))
    action = decided(refused, deciding(window=WINDOW))
    assert isinstance(action, Append)
    assert kinds(action) == ["CompactionStarted"]
    assert refused.head >= action.events[0].up_to > refused.covered  # type: ignore[attr-defined]


def test_a_refused_call_with_nothing_but_its_own_message_ends_the_turn() -> None:
    state = state_of(*begun(TOKEN * 20_000), failed(code=TOO_LONG, retryable=False))
    action = decided(state, deciding(window=WINDOW))
    assert isinstance(action, Append)
    assert "TurnEnded" in kinds(action)


def test_no_compaction_is_made_that_would_free_next_to_nothing() -> None:
    """A question that fills most of the window stays. Summarising each small result after it would cost a call at each
    step, and free nothing."""
    log = begun(TOKEN * 6_000)
    started: list[CompactionStarted] = []
    for number in range(1, 60):
        id = f"c{number}"
        log += [said(call(id), id=f"m{number}"), result(id, TOKEN * 40), step_ended(number), step(number + 1)]
        state = state_of(*log)
        if (begins := started_by(state)) is not None:
            started.append(begins)
            log += compacted(begins.up_to, trigger=begins.trigger, kept=(3,))
    assert 1 <= len(started) <= 5


@pytest.mark.parametrize("counted", [-1_000_000, 0])
def test_a_usage_that_can_not_be_is_not_believed(counted: int) -> None:
    first: list[Body] = [*begun(TOKEN * 9_000), said(text("Yes."))]
    first += [Usage(message_id=MessageId("m1"), model="m", input_tokens=counted), step_ended(1), turn_ended()]
    state = state_of(*first, *begun()[1:2], user("Go on.", id="u2"), step(1))
    started = started_by(state)
    assert started is not None
    assert started.trigger == "threshold"


def test_a_usage_that_lies_does_not_start_a_compaction_at_every_step() -> None:
    log: list[Body] = [*talked(question=10, answer=10), said(call("c2"), id="m2")]
    log += [Usage(message_id=MessageId("m2"), model="m", input_tokens=10**12), result("c2"), step_ended(2), step(3)]
    assert started_by(state_of(*log)) is None


def test_an_answer_that_took_several_calls_is_no_larger_context() -> None:
    """A provider paused the answer: the figures of its calls are added up, and the context was read three times."""
    use = Usage(message_id=MessageId("m1"), model="m", input_tokens=12_000, output_tokens=300, context_tokens=4_300)
    state = state_of(*begun(TOKEN * 4_000), said(call()), use, result(), step_ended(1), step(2))
    assert state.context_tokens(0) < 4_400
    assert started_by(state) is None


def test_a_request_to_compact_is_left_to_a_process_that_can_run_the_session() -> None:
    state = state_of(*begun(TOKEN * 100), said(text("Yes.")), step_ended(1), turn_ended())
    inbox = put(Compact(compaction_id=CompactionId("k1")))
    assert decided(state, deciding(inbox=inbox, eligible=False)) == Release(for_another=True)


def test_a_refusal_after_a_compaction_of_the_same_call_starts_the_next_one_at_once() -> None:
    log = talked(question=3_000, answer=3_000)
    late = said(call("c2"), id="m2")
    log += [*compacted(len(log), trigger="full", kept=(3,)), late, result("c2", TOKEN * 100), step_ended(2), step(3)]
    log += compacted(8, trigger="full")
    refused = msgspec.structs.replace(failed(id="m3", code=TOO_LONG, retryable=False), window=WINDOW)
    started = started_by(state_of(*log, refused))
    assert started is not None
    assert started.trigger == "too_long"


def test_a_pinned_message_that_the_model_got_again_outlives_a_rewind_to_before_its_pin() -> None:
    first: list[Body] = [*begun("Never use tabs."), said(text("Yes.")), step_ended(1), turn_ended()]
    log = [*first, *compacted(len(first)), *begun()[1:2], user("Go on.", id="u2"), step(1), said(text("Yes."), id="m2")]
    log += [step_ended(1), turn_ended()]
    pin = MessagePinned(message_id=MessageId("u1"), pinned=True, position=Position(3), content="Never use tabs.")
    state = state_of(*log, pin, Truncated(kept=Position(len(first) + 2)))
    assert state.pinned == ("u1",)
    assert [person.text for person in people_in(state.history)] == ["Never use tabs."]
    unsaid = state_of(*log, pin, Truncated(kept=Position(1)))
    assert not list(people_in(unsaid.history))


def under_way(log: list[Body]) -> State:
    began = CompactionStarted(compaction_id=CompactionId("k1"), trigger="threshold", up_to=Position(5))
    return state_of(*log, began)


def test_a_call_waits_for_a_compaction_only_where_the_window_is_nearly_full() -> None:
    roomy, full = (under_way(talked(question=tokens, answer=100)) for tokens in (8_500, 9_500))
    assert isinstance(decided(roomy, deciding(window=WINDOW, running=[COMPACTION])), CallModel)
    assert decided(full, deciding(window=WINDOW, running=[COMPACTION])) == Pause()


@pytest.mark.parametrize("tokens", [6_500, 9_500])
def test_a_cancelled_compaction_is_not_begun_again_in_its_turn_unless_a_call_is_refused(tokens: int) -> None:
    state = under_way(talked(question=tokens, answer=2_000))
    cancel = put(CancelCompaction(cancel_id="x"))
    written = decided(state, deciding(window=WINDOW, inbox=cancel, running=[COMPACTION]))
    assert isinstance(written, Append)
    assert (kinds(written), [each.outcome for each in written.promotes]) == (["CompactionEnded"], ["cancelled"])
    state = after(state, written)
    assert isinstance(decided(state, deciding(window=WINDOW)), CallModel)
    refused = after(state, Append(events=[failed(id="m2", code=TOO_LONG, retryable=False)]))
    again = started_by(refused)
    assert again is not None
    assert again.trigger == "too_long"


def test_the_next_turn_after_a_cancelled_compaction_makes_one_again() -> None:
    cancelled = CompactionEnded(compaction_id=CompactionId("k1"), trigger="threshold", success=False, error="cancelled")
    began = CompactionStarted(compaction_id=CompactionId("k1"), trigger="threshold", up_to=Position(5))
    log = [
        *talked(question=5_000, answer=3_500),
        began,
        cancelled,
        said(text("Yes."), id="m2"),
        step_ended(2),
        turn_ended(),
    ]
    started = started_by(state_of(*log, *begun()[1:2], user("Go on.", id="u2"), step(1)))
    assert started is not None
    assert started.trigger == "threshold"


def thought(id: str) -> Body:
    reasoning = ReasoningBlock(text="Hm.", opaque="sealed")
    blocks = (reasoning, call(f"c{id}"))
    return message.AssistantMessage(message_id=MessageId(id), blocks=blocks, reasoning_source="m")


def test_a_compaction_drops_the_reasoning_of_finished_turns_and_keeps_that_of_the_unfinished_one() -> None:
    first = [*begun(), said(text("Yes.")), step_ended(1), turn_ended()]
    second = [*begun()[1:2], user("And?", id="u2"), step(1), thought("m1"), result("cm1"), step_ended(1), turn_ended()]
    third = [*begun()[1:2], user("Go on.", id="u3"), step(1), thought("m2"), result("cm2"), step_ended(1), step(2)]
    state = state_of(*first, *second, *third, *compacted(len(first)))
    replies = [item for item in state.history if isinstance(item, ModelReply)]
    assert [bool(reply.reasoning) for reply in replies] == [False, True]


def test_the_anchor_is_the_last_message_before_the_turn_also_after_a_summary() -> None:
    first = [*begun("First."), said(text("Yes.")), step_ended(1), turn_ended()]
    state = state_of(*first, *compacted(len(first), kept=(3,)), *begun()[1:2], user("Go on.", id="u2"), step(1))
    count = anchor(state)
    assert count is not None
    sent = conversation(state.history, state.seed)
    assert [part.text for part in sent[count:] if isinstance(part, UserText)] == ["Go on."]


def test_after_a_failure_no_summary_is_tried_beside_a_turn_for_a_while_and_a_full_context_is_cut() -> None:
    roomy, full = (talked(question=tokens, answer=3_000) for tokens in (5_500, 7_000))
    failure = CompactionEnded(compaction_id=CompactionId("k1"), trigger="threshold", success=False, error="failed")
    began = CompactionStarted(compaction_id=CompactionId("k1"), trigger="threshold", up_to=Position(5))
    assert started_by(state_of(*roomy)) is not None
    assert started_by(state_of(*roomy, began, failure)) is None
    cut = decided(state_of(*full, began, failure), deciding(window=WINDOW))
    assert isinstance(cut, Append)
    assert kinds(cut) == ["CompactionStarted", "CompactionEnded"]


def test_a_compaction_that_killed_its_processes_is_given_up_after_so_many() -> None:
    log = talked(question=7_000, answer=3_000)
    state = state_of(*log)
    kinds_seen: list[str] = []
    for _ in range(Bounds().max_compaction_attempts + 1):
        written = decided(state, deciding(window=WINDOW))  # A new holder, each time.
        assert isinstance(written, Append)
        kinds_seen += kinds(written)
        state = after(state, written)
    assert kinds_seen == ["CompactionStarted"] * Bounds().max_compaction_attempts + ["CompactionEnded"]
    assert state.compactions == 1, "the context is cut, because it does not fit"


def beside_summary(state: State) -> str:
    """The note after a summary, which states what held when it was made."""
    return [part.text for part in context(state) if isinstance(part, UserText)][-1]


def test_granted_rules_and_running_tasks_are_stated_beside_a_summary_from_the_state() -> None:
    first = [*begun(), said(call()), result(), task_started("t9", command="make all"), step_ended(1), turn_ended()]
    first.append(SettingsChanged(allow=("shell(git *)",), place_rules=("read",)))
    state = state_of(*first, *compacted(len(first)))
    told = beside_summary(state)
    assert "- read\n- shell(git *)\n[end of quote" in told, "a rule is text of a client"
    assert "make all" in told
    granted_later = after(state, Append(events=[SettingsChanged(allow=("*",))]))
    assert beside_summary(granted_later) == told, "what was sent stays the beginning of what is sent"


def test_of_many_long_rules_a_few_lines_are_stated() -> None:
    rules = tuple(f"shell({number} {TOKEN * 200})" for number in range(MAX_SESSION_RULES))
    told = beside_summary(state_of(STARTED, SettingsChanged(allow=rules), *begun()[1:], *compacted(4)))
    assert f"- {MAX_SESSION_RULES - 20} older ones" in told
    assert len(told) < 20 * 250


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_mode_is_stated_in_the_system_text_as_it_is_now_and_changes_nothing_else(is_compacted: bool) -> None:
    first = [*begun(), said(text("Yes.")), step_ended(1), turn_ended()]
    first += compacted(len(first), kept=(3,)) if is_compacted else []
    plain = context(state_of(*first))
    planning = context(state_of(*first, in_mode("plan")))
    back = context(state_of(*first, in_mode("plan"), in_mode("interactive")))
    assert isinstance(planning[0], SystemText)
    assert isinstance(plain[0], SystemText)
    assert planning[0].text == f"{plain[0].text}\n\nThe session is in plan mode."
    assert planning[1:] == plain[1:]
    assert back == plain


def in_mode(mode: Mode) -> Body:
    return ModeChanged(new_mode=mode, previous_mode="interactive")


def test_a_client_that_replaces_the_system_text_states_the_mode_itself() -> None:
    state = State(policy=COPILOT, system_mode="replace", system_message="Mine.", mode="plan")
    assert context(state)[0] == SystemText("Mine.")
