"""Turns start, proceed from step to step, and end: always visibly, and always within a bound."""

import pytest

from holdfast.events import message, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.ids import MessageId, TurnId
from holdfast.session.actions import Append, CallModel, Pause, Promoted, Release
from holdfast.session.bounds import Bounds
from holdfast.session.decide import decide
from holdfast.session.endings import SEALED_LINE
from holdfast.session.history import context
from holdfast.session.inputs import MODEL
from holdfast.session.model_step import CLOSING_LINE, EMPTY_LINE, LAST_ROUND_LINE, after_answer, after_answer_promotions
from holdfast.session.state import Phase, State
from holdfast.session.turn_start import title_from
from tests.session.logs import (
    HERE,
    STARTED,
    TURN,
    after,
    appended,
    begun,
    call,
    decided,
    deciding,
    failed,
    kinds,
    put,
    result,
    said,
    sends,
    state_of,
    step,
    step_ended,
    text,
    user,
)


def taken(written: Append) -> list[tuple[str, str]]:
    """The messages that a decision promotes, each with its delivery."""
    return [(body.content, body.delivery) for body in written.events if isinstance(body, message.UserMessage)]


# Starting


def test_an_idle_session_is_released() -> None:
    assert decided(state_of(STARTED)) == Release()


def test_a_message_starts_a_turn_its_title_and_its_first_step_in_one_unit() -> None:
    written = appended(state_of(STARTED), deciding(inbox=put(sends("Hello there", added="[date]"))))
    assert written.events == [
        turn.TurnStarted(turn_id=TurnId("n1")),
        message.UserMessage(
            message_id=MessageId("u2"),
            turn_id=TurnId("n1"),
            content="Hello there",
            delivery="idle",
            added="[date]",
        ),
        session.TitleChanged(title="Hello there"),
        turn.StepStarted(turn_id=TurnId("n1"), step=1, message_id=MessageId("n2")),
    ]
    assert written.promotes == [Promoted(1, "idle")]


def test_a_session_that_has_a_title_keeps_it() -> None:
    written = appended(state_of(STARTED, session.TitleChanged(title="T")), deciding(inbox=put(sends("Hello"))))
    assert "TitleChanged" not in kinds(written)


@pytest.mark.parametrize(
    ("sent", "first_turn"),
    [
        ([("a", False)], ["a"]),
        ([("a", False), ("b", False)], ["a", "b"]),
        ([("a", True), ("b", True)], ["a"]),
        ([("a", True), ("b", False)], ["a", "b"]),
        ([("a", False), ("b", True), ("c", False)], ["a", "c"]),
        ([("a", True), ("b", True), ("c", False)], ["a", "c"]),
    ],
)
def test_the_first_message_starts_a_turn_and_steering_messages_join_it(
    sent: list[tuple[str, bool]], first_turn: list[str]
) -> None:
    inbox = put(*(sends(words, id=words, enqueue=enqueue) for words, enqueue in sent))
    written = appended(state_of(STARTED), deciding(inbox=inbox))
    assert [words for words, _ in taken(written)] == first_turn
    assert [sent[found.sequence - 1][0] for found in written.promotes] == first_turn


def test_a_message_that_arrived_during_another_turn_is_delivered_as_queued() -> None:
    written = appended(state_of(STARTED), deciding(inbox=put(sends("Later"), while_running=True)))
    assert taken(written) == [("Later", "queued")]
    assert written.promotes == [Promoted(1, "queued")]


@pytest.mark.parametrize(("first", "second", "turns"), [(True, True, True), (True, False, False)])
def test_a_turn_is_unattended_only_if_all_of_its_messages_are(first: bool, second: bool, turns: bool) -> None:
    inbox = put(sends("a", id="a", unattended=first), sends("b", id="b", unattended=second))
    started = appended(state_of(STARTED), deciding(inbox=inbox)).events[0]
    assert isinstance(started, turn.TurnStarted)
    assert started.unattended is turns


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("Hello", "Hello"),
        ("  two\n lines ", "two lines"),
        ("word " * 30, "word " * 11 + "word…"),
        ("x" * 80, "x" * 60 + "…"),
    ],
)
def test_a_title_is_the_first_words_of_the_message(words: str, title: str) -> None:
    assert title_from(words) == title


# Steering


def test_steering_joins_at_the_step_boundary_after_the_results() -> None:
    state = state_of(*begun(), said(call()), result())
    inbox = put(sends("And b", id="b"), sends("Later", id="l", enqueue=True), sends("And c", id="c"))
    written = appended(state, deciding(inbox=inbox))
    assert kinds(written) == ["StepEnded", "UserMessage", "UserMessage", "StepStarted"]
    assert taken(written) == [("And b", "steering"), ("And c", "steering")]
    assert written.promotes == [Promoted(1, "steering"), Promoted(3, "steering")]
    told = context(after(state, written))
    assert [type(item).__name__ for item in told[2:]] == ["AssistantTurn", "ToolOutcome", "UserText", "UserText"]


def test_steering_waits_while_a_tool_of_the_step_still_runs() -> None:
    state = state_of(*begun(), said(call()))
    inputs = deciding(inbox=put(sends("And b")), running=["c1"], facts={"c1": HERE})
    assert decided(state, inputs) == Pause()


def test_steering_after_the_answer_extends_the_same_turn() -> None:
    state = state_of(*begun())
    assert state.turn
    inputs = deciding(inbox=put(sends("One more")))
    following = after_answer(state, inputs, state.turn, "Done.")
    assert [type(body).__name__ for body in following] == ["StepEnded", "UserMessage", "StepStarted"]
    assert after_answer_promotions(following, state, inputs) == [Promoted(1, "steering")]


def test_a_message_for_its_own_turn_does_not_extend_the_current_one() -> None:
    state = state_of(*begun())
    assert state.turn
    inputs = deciding(inbox=put(sends("Later", enqueue=True)))
    following = after_answer(state, inputs, state.turn, "Done.")
    assert [type(body).__name__ for body in following] == ["StepEnded", "TurnEnded"]
    assert after_answer_promotions(following, state, inputs) == []


def test_a_turn_that_crashed_between_steps_starts_its_next_step() -> None:
    state = state_of(*begun(), said(call()), result(), step_ended(1))
    written = appended(state, deciding(inbox=put(sends("And b"))))
    assert kinds(written) == ["UserMessage", "StepStarted"]
    assert written.promotes == [Promoted(1, "steering")]


# Ending


def test_an_answer_with_text_and_no_calls_ends_the_turn() -> None:
    state = state_of(*begun(), said(text("Done.")))
    written = appended(state)
    ended = written.events[-1]
    assert kinds(written) == ["StepEnded", "TurnEnded"]
    assert isinstance(ended, turn.TurnEnded)
    assert (ended.turn_id, ended.reason, ended.duration_ms) == (TURN, "completed", 98_000)
    assert decided(after(state, written)) == Release()


@pytest.mark.parametrize("blocks", [(), (text(" \n"),), (message.ReasoningBlock(text="Hm."),)])
def test_an_empty_answer_is_requested_once_more_and_then_closed_with_a_note(
    blocks: tuple[message.Block, ...],
) -> None:
    state = state_of(*begun(), said(*blocks))
    nudged = appended(state)
    assert kinds(nudged) == ["StepEnded", "Noted", "StepStarted"]
    assert nudged.events[1] == message.Noted(text=EMPTY_LINE, reason="empty answer")
    state = after(state, nudged)
    assert isinstance(decided(state), CallModel)
    assert state.turn
    closed = after_answer(state, deciding(), state.turn, "")
    assert [type(body).__name__ for body in closed] == [
        "StepEnded",
        "StepStarted",
        "AssistantMessage",
        "StepEnded",
        "TurnEnded",
    ]
    line = closed[2]
    assert isinstance(line, message.AssistantMessage)
    assert line.blocks == (text(CLOSING_LINE),)


def last_round(bounds: Bounds) -> State:
    """A state after as many tool rounds as the limit allows."""
    log = begun()
    for number in range(1, bounds.max_rounds + 1):
        log += [said(call(f"c{number}", arguments=f"{number}"), id=f"m{number}"), result(f"c{number}")]
        log += [step_ended(number), step(number + 1)] if number < bounds.max_rounds else []
    return state_of(*log)


def test_after_the_round_limit_one_more_model_call_sums_up() -> None:
    bounds = Bounds(max_rounds=2)
    state = last_round(bounds)
    written = appended(state, deciding(bounds=bounds))
    assert kinds(written) == ["StepEnded", "Noted", "StepStarted"]
    assert written.events[1] == message.Noted(text=LAST_ROUND_LINE, reason="last round")
    started = written.events[2]
    assert isinstance(started, turn.StepStarted)
    assert started.last
    state = after(state, written)
    assert state.turn
    assert state.turn.last_step


@pytest.mark.parametrize("words", ["Summed up.", ""])
def test_tool_calls_of_the_last_round_are_not_run_and_the_turn_ends_visibly(words: str) -> None:
    """No tools were offered: a model that still calls one must not continue for ever."""
    state = state_of(*begun()[:3], step(1, last=True), said(text(words), call()))
    written: list[Body] = []
    while state.turn:
        decision = appended(state, deciding(facts={"c1": HERE}))
        written += decision.events
        state = after(state, decision)
        assert len(written) < 10
    (completed,) = [body for body in written if isinstance(body, tool.ToolCompleted)]
    assert (completed.tool_call_id, completed.success) == ("c1", False)
    visible = any(isinstance(body, (message.AssistantMessage, session.SessionError)) for body in written)
    assert words or visible


def test_steering_in_the_last_round_is_answered_in_another_last_round() -> None:
    bounds = Bounds(max_rounds=2)
    state = after(last_round(bounds), appended(last_round(bounds), deciding(bounds=bounds)))
    assert state.turn
    inputs = deciding(bounds=bounds, inbox=put(sends("And this?")))
    following = after_answer(state, inputs, state.turn, "Summed up.")
    assert [type(body).__name__ for body in following] == ["StepEnded", "UserMessage", "StepStarted"]
    started = following[-1]
    assert isinstance(started, turn.StepStarted)
    assert started.last


@pytest.mark.parametrize("log", [[], [said(call())], [said(text("x")), step_ended(1)]])
def test_a_turn_that_keeps_killing_its_holders_is_given_up_visibly(log: list[Body]) -> None:
    bounds = Bounds(max_claims_without_progress=5)
    state = state_of(*begun(), *log)
    inputs = deciding(bounds=bounds, claims_without_progress=5, facts={"c1": HERE})
    assert "SessionError" not in (kinds(found) if isinstance(found := decided(state, inputs), Append) else [])
    written = appended(state, deciding(bounds=bounds, claims_without_progress=6, facts={"c1": HERE}))
    (error,) = [body for body in written.events if isinstance(body, session.SessionError)]
    assert (error.code, error.retryable) == ("poisoned", True)
    ended = written.events[-1]
    assert isinstance(ended, turn.TurnEnded)
    assert ended.reason == "error"
    assert after(state, written).phase is Phase.IDLE


def test_a_poisoned_session_still_accepts_a_new_message() -> None:
    written = appended(state_of(STARTED), deciding(claims_without_progress=9, inbox=put(sends("Again"))))
    assert kinds(written)[0] == "TurnStarted"


# The model call


def test_a_step_calls_the_model_once() -> None:
    assert decided(state_of(*begun())) == CallModel(MessageId("m1"), attempt=1)
    assert decided(state_of(*begun()), deciding(running=[MODEL])) == Pause()


def test_a_model_call_that_showed_nothing_before_a_crash_is_made_again() -> None:
    state = state_of(*begun(), turn.Claimed(fence=2, node="n"))  # type: ignore[arg-type]
    assert decided(state) == CallModel(MessageId("m1"), attempt=2)


@pytest.mark.parametrize(
    ("failures", "delay"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5, 5.0)], ids=lambda value: str(value)
)
def test_a_failed_model_call_is_retried_with_a_doubling_backoff(failures: int, delay: float) -> None:
    bounds = Bounds(max_model_attempts=9, backoff_seconds=1.0, max_backoff_seconds=5.0)
    state = state_of(*begun(), *(failed(attempt=number) for number in range(1, failures + 1)))
    assert decided(state, deciding(bounds=bounds)) == CallModel(MessageId("m1"), failures + 1, delay)


def test_a_retry_waits_as_long_as_the_provider_asks() -> None:
    state = state_of(*begun(), failed(retry_after_ms=60_000))
    assert decided(state) == CallModel(MessageId("m1"), 2, 60.0)


@pytest.mark.parametrize(
    "failures",
    [
        [failed(retryable=False)],
        [failed(retry_after_ms=120_001)],
        [failed(attempt=number) for number in range(1, 6)],
    ],
)
def test_a_model_error_that_is_not_retryable_ends_the_turn(failures: list[message.CallFailed]) -> None:
    state = state_of(*begun(), *failures)
    written = appended(state)
    assert kinds(written) == ["StepEnded", "SessionError", "TurnEnded"]
    error, ended = written.events[1], written.events[-1]
    assert isinstance(error, session.SessionError)
    assert isinstance(ended, turn.TurnEnded)
    assert (error.code, error.message) == ("model_unavailable", "Not now.")
    assert error.retryable is failures[-1].retryable
    assert ended.reason == "error"


def test_partial_text_is_kept_and_sealed_when_retries_are_exhausted() -> None:
    shown = (text("Half"), call("c9"))
    written = appended(state_of(*begun(), failed(retryable=False)), deciding(shown=shown))
    assert kinds(written) == ["AssistantMessage", "ToolCompleted", "StepEnded", "SessionError", "TurnEnded"]
    assert written.events[0] == said(*shown, interrupted=True)
    assert written.drops_segments


@pytest.mark.parametrize(("log", "cause"), [([], "crash"), ([failed()], "provider error")])
def test_the_shown_part_of_a_cut_answer_is_sealed_and_the_call_is_made_again(
    log: list[Body], cause: message.SealCause
) -> None:
    state = state_of(*begun(), *log)
    written = appended(state, deciding(shown=(text("Half"), call("c9"))))
    assert kinds(written) == ["AssistantMessage", "ToolCompleted", "Sealed", "Noted"]
    assert written.events[2] == message.Sealed(message_id=MessageId("m1"), next_message_id=MessageId("n1"), cause=cause)
    assert written.events[3] == message.Noted(text=SEALED_LINE, reason="interrupted")
    assert written.drops_segments
    state = after(state, written)
    assert state.phase is Phase.CALLING_MODEL
    action = decided(state)
    assert isinstance(action, CallModel)
    assert action.message_id == "n1"


def test_sealing_keeps_the_count_of_failed_attempts() -> None:
    bounds = Bounds(max_model_attempts=2)
    state = state_of(*begun(), failed())
    state = after(state, appended(state, deciding(shown=(text("Half"),), bounds=bounds)))
    action = decided(state, deciding(bounds=bounds))
    assert isinstance(action, CallModel)
    assert (action.attempt, action.delay_seconds) == (2, 1.0)
    fail_again = failed(attempt=2, id="n1")
    state = after(state, Append(events=[fail_again]))
    assert kinds(appended(state, deciding(bounds=bounds)))[1] == "SessionError"


def test_a_crash_after_a_failure_is_not_attributed_to_the_provider() -> None:
    """The failure belongs to an earlier message: a crash cut the answer that is shown now."""
    sealed_before = [failed(), said(text("Half"), interrupted=True)]
    sealed_before.append(message.Sealed(message_id=MessageId("m1"), next_message_id=MessageId("m9"), cause="crash"))
    state = state_of(*begun(), *sealed_before)
    cut = appended(state, deciding(shown=(text("Other"),))).events[1]
    assert isinstance(cut, message.Sealed)
    assert cut.cause == "crash"


def test_decide_is_pure() -> None:
    """The same state and inputs always give the same action."""
    state = state_of(STARTED, *begun()[1:2], user("x"))
    first = decide(state, deciding(inbox=put(sends("y"))))
    assert decide(state, deciding(inbox=put(sends("y")))) == first
