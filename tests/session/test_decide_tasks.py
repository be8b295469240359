"""News of tasks reaches the model at every step boundary, in a turn of its own, or in the next turn; and a command that
a turn waits for goes to the background when a client asks."""

import pytest

from holdfast.events import message, request, turn
from holdfast.events.body import Body
from holdfast.events.context import UserText
from holdfast.events.ids import Fence, MessageId, RequestId, ToolCallId, TurnId
from holdfast.events.task import TaskNotified
from holdfast.session.actions import Append, GoToBackground, Interrupt, Pause, Promoted, Release, RunTools
from holdfast.session.bounds import Bounds
from holdfast.session.endings import tasks_of_source
from holdfast.session.fold import fold
from holdfast.session.history import context
from holdfast.session.inputs import MODEL, CallFacts, Inputs
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.session.notices import notice_text, running_tasks
from holdfast.session.state import State
from tests.session.logs import (
    HERE,
    STARTED,
    TURN,
    after,
    appended,
    at,
    attempted,
    begun,
    call,
    decided,
    deciding,
    failed,
    kinds,
    news,
    notice,
    notified,
    plain_context,
    put,
    result,
    said,
    sends,
    state_of,
    step,
    step_ended,
    stops,
    task_started,
    text,
    to_background,
    turn_ended,
    user,
)

FLIPPED = [*begun(), said(call()), attempted(), result(), task_started()]
"""A turn whose only call started the task t9."""

IDLE = [*FLIPPED, step_ended(1), step(2), said(text("It runs."), id="m2"), step_ended(2), turn_ended()]


def told(written: Append) -> list[tuple[str, str]]:
    """The tasks that a decision reports, each with its outcome."""
    bodies = [body for body in written.events if isinstance(body, TaskNotified)]
    return [(body.notice.task_id, body.notice.kind) for body in bodies]


def woken_times(count: int, *, bodies: list[Body] | None = None) -> State:
    """An idle session whose last `count` turns were started by tasks."""
    log = list(IDLE if bodies is None else bodies)
    for number in range(count):
        log += [
            turn.TurnStarted(turn_id=TURN, woken=True),
            notified(f"x{number}"),
            step(1),
            said(text("I see.")),
            step_ended(1),
            turn_ended(),
        ]
    return state_of(*log)


# In a turn


@pytest.mark.parametrize(
    "log",
    [
        [*begun(), said(call()), result()],
        [*begun(), said(call()), result(), step_ended(1)],
        FLIPPED,
    ],
)
def test_news_is_promoted_at_every_step_boundary_before_messages(log: list[Body]) -> None:
    state = state_of(*log)
    inbox = put(sends("And b"), news("t1"), sends("Later", id="l", enqueue=True), news("t2", "failed"))
    written = appended(state, deciding(inbox=inbox))
    ended = [] if state.phase == "between steps" else ["StepEnded"]
    assert kinds(written) == [*ended, "TaskNotified", "TaskNotified", "UserMessage", "StepStarted"]
    assert told(written) == [("t1", "completed"), ("t2", "failed")]
    assert written.promotes == [Promoted(2, "told"), Promoted(4, "told"), Promoted(1, "steering")]
    sent = plain_context(after(state, written))
    list_changed = [UserText(running_tasks(state.tasks.items()))] if log is FLIPPED else []
    assert list(sent[-3 - len(list_changed) :]) == [
        UserText(notice_text(notice("t1"))),
        UserText(notice_text(notice("t2", "failed"))),
        UserText("And b"),
        *list_changed,
    ]


def test_news_waits_while_the_model_answers_or_a_tool_runs() -> None:
    waiting = put(news())
    assert decided(state_of(*begun()), deciding(inbox=waiting, running=[MODEL])) == Pause()
    state = state_of(*begun(), said(call()), attempted())
    assert decided(state, deciding(inbox=waiting, running=["c1"], facts={"c1": HERE})) == Pause()


def test_news_starts_a_new_turn_instead_of_extending_an_answered_one() -> None:
    state = state_of(*begun())
    assert state.turn
    inputs = deciding(inbox=put(news()))
    following = after_answer(state, inputs, state.turn, "Done.")
    assert [type(body).__name__ for body in following] == ["StepEnded", "TurnEnded"]
    assert after_answer_promotions(following, state, inputs) == []
    state = fold(at([said(text("Done.")), *following], after=state.head), state)
    woken = appended(state, inputs)
    assert kinds(woken) == ["TurnStarted", "TaskNotified", "StepStarted"]


def test_news_is_promoted_with_a_message_that_extends_an_answered_turn() -> None:
    state = state_of(*begun())
    assert state.turn
    inputs = deciding(inbox=put(news(), sends("And b")))
    following = after_answer(state, inputs, state.turn, "Done.")
    assert [type(body).__name__ for body in following] == ["StepEnded", "TaskNotified", "UserMessage", "StepStarted"]
    assert after_answer_promotions(following, state, inputs) == [Promoted(1, "told"), Promoted(2, "steering")]


def test_news_waits_while_the_turn_waits_for_a_person() -> None:
    asked = request.UserInputRequested(request_id=RequestId("r1"), tool_call_id=ToolCallId("c1"), question="?")
    waiting = turn.TurnWaiting(turn_id=TURN, reason="requests", request_ids=(RequestId("r1"),))
    state = state_of(*begun(), said(call()), asked, waiting)
    assert decided(state, deciding(inbox=put(news()), facts={"c1": HERE})) == Release()


# An idle session


def test_all_waiting_news_wakes_an_idle_session_for_one_turn() -> None:
    written = appended(state_of(*IDLE), deciding(inbox=put(news("t9"), news("t2", "failed"), news("t3", "stalled"))))
    assert written.events == [
        turn.TurnStarted(turn_id=TurnId("n1"), woken=True),
        notified("t9"),
        notified("t2", "failed"),
        notified("t3", "stalled"),
        turn.StepStarted(turn_id=TurnId("n1"), step=1, message_id=MessageId("n2")),
    ]
    assert written.promotes == [Promoted(1, "told"), Promoted(2, "told"), Promoted(3, "told")]
    assert written.supposes_head


def test_a_waiting_message_starts_the_turn_and_the_news_comes_first_in_it() -> None:
    inbox = put(news(), sends("What of it?"), news("t2", "lost"))
    written = appended(state_of(*IDLE), deciding(inbox=inbox))
    assert kinds(written)[:4] == ["TurnStarted", "TaskNotified", "TaskNotified", "UserMessage"]
    assert [body.woken for body in written.events if isinstance(body, turn.TurnStarted)] == [False]
    assert [found.sequence for found in written.promotes] == [1, 3, 2]


def test_silent_news_is_recorded_without_a_turn() -> None:
    state = state_of(*IDLE)
    assert list(state.tasks) == ["t9"]
    written = appended(state, deciding(inbox=put(news("t9", "killed", silent=True))))
    assert kinds(written) == ["TaskNotified"]
    assert written.promotes == [Promoted(1, "told")]
    before = context(state)[1:]
    state = after(state, written)
    assert (state.tasks, context(state)[1:]) == ({}, before)
    assert decided(state) == Release()


def test_silent_news_is_promoted_together_with_other_news() -> None:
    inbox = put(news("t1", "killed", silent=True), news("t2"))
    written = appended(state_of(*IDLE), deciding(inbox=inbox))
    assert kinds(written) == ["TurnStarted", "TaskNotified", "TaskNotified", "StepStarted"]
    assert len(context(after(state_of(*IDLE), written))) == len(context(state_of(*IDLE))) + 1


def test_after_the_limit_of_woken_turns_news_waits_for_a_person() -> None:
    assert Bounds().max_woken_turns == 20
    waiting = put(news())
    state = woken_times(20)
    assert state.woken_turns == 20
    assert decided(state, deciding(inbox=waiting)) == Release()
    last = appended(woken_times(19), deciding(inbox=waiting))
    assert kinds(last)[0] == "TurnStarted"
    inbox = put(news(), sends("Well?"))
    written = appended(state, deciding(inbox=inbox))
    assert told(written) == [("t9", "completed")]
    assert after(state, written).woken_turns == 0


@pytest.mark.parametrize("delivery", ["idle", "steering"])
def test_any_message_of_a_person_resets_the_limit_of_woken_turns(delivery: message.Delivery) -> None:
    start = [turn.TurnStarted(turn_id=TURN, woken=delivery == "steering"), user(delivery=delivery)]
    state = woken_times(1, bodies=[*IDLE, *start, step(1), said(text("Yes.")), step_ended(1), turn_ended()])
    assert state.woken_turns == 1


def test_silent_news_is_promoted_even_when_woken_turns_are_used_up() -> None:
    """Silent news alone never starts a turn, so the limit of woken turns does not apply to it."""
    written = appended(woken_times(20), deciding(inbox=put(news("t9", "killed", silent=True))))
    assert kinds(written) == ["TaskNotified"]


@pytest.mark.parametrize(("first", "second", "turns"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_woken_turn_is_unattended_if_all_of_its_tasks_were_started_unattended(
    first: bool, second: bool, turns: bool
) -> None:
    log: list[Body] = []
    for id, unattended in (("t1", first), ("t2", second)):
        log += [*begun(unattended=unattended)[1:], said(call()), result(), task_started(id), step_ended(1)]
        log.append(turn_ended())
    written = appended(state_of(STARTED, *log), deciding(inbox=put(news("t1"), news("t2"))))
    started = written.events[0]
    assert isinstance(started, turn.TurnStarted)
    assert started.unattended is turns


def test_a_process_that_may_not_run_a_session_promotes_no_news() -> None:
    assert decided(state_of(*IDLE), deciding(eligible=False, inbox=put(news()))) == Release(for_another=True)


# Turns that end early


def ended_early() -> list[tuple[str, State, Inputs]]:
    waiting = put(news("t1"), stops(), news("t2", "killed", silent=True))
    tries = Bounds().max_model_attempts
    return [
        ("stopped", state_of(*begun()), deciding(inbox=waiting)),
        ("stopped", state_of(*begun(), said(call()), attempted()), deciding(inbox=waiting, facts={"c1": HERE})),
        ("stopped", state_of(*begun(), said(call()), result(), step_ended(1)), deciding(inbox=waiting)),
        ("error", state_of(*begun(), *(failed(attempt=n) for n in range(1, tries + 1))), deciding(inbox=waiting[::2])),
        ("error", state_of(*begun()), deciding(inbox=waiting[::2], claims_without_progress=99)),
    ]


@pytest.mark.parametrize(("reason", "state", "inputs"), ended_early())
def test_a_turn_that_is_stopped_or_fails_promotes_the_news_and_starts_no_other_turn(
    reason: str, state: State, inputs: Inputs
) -> None:
    written = appended(state, inputs)
    ended = written.events[-1]
    assert isinstance(ended, turn.TurnEnded)
    assert ended.reason == reason
    assert told(written) == [("t1", "completed"), ("t2", "killed")]
    assert {1, 3} <= {found.sequence for found in written.promotes}
    assert written.ends_commands
    state = after(state, written)
    assert decided(state) == Release()
    next_turn = appended(state, deciding(inbox=put(sends("Go on"))))
    sent = plain_context(after(state, next_turn))
    assert UserText(notice_text(notice("t1"))) in sent
    assert not any("t2" in str(found) for found in sent)


def test_news_that_arrives_after_a_stop_wakes_the_session_as_usual() -> None:
    state = state_of(*begun())
    state = after(state, appended(state, deciding(inbox=put(stops()))))
    assert kinds(appended(state, deciding(inbox=put(news())))) == ["TurnStarted", "TaskNotified", "StepStarted"]


# To the background


def test_a_call_is_sent_to_the_background_once_when_a_client_asks() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")), attempted("c1"), attempted("c2"))
    facts = {"c1": HERE, "c2": HERE}
    inputs = deciding(inbox=put(to_background(call="c2")), running=["c1", "c2"], facts=facts)
    assert decided(state, inputs) == GoToBackground(ToolCallId("c2"))
    asked = deciding(inbox=inputs.inbox, running=["c1", "c2"], facts=facts, backgrounded=frozenset({"c2"}))
    assert decided(state, asked) == Pause()


def test_a_call_that_has_not_started_is_started_before_it_goes_to_the_background() -> None:
    """Its holder died: the next holder adopts its command first, and then sends it to the background."""
    state = state_of(*begun(), said(call()), attempted())
    repeatable = deciding(inbox=put(to_background()), facts={"c1": CallFacts(where="here", repeatable=True)})
    action = decided(state, repeatable)
    assert isinstance(action, RunTools)
    assert [found.tool_call_id for found in action.calls] == ["c1"]


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (FLIPPED, "backgrounded"),
        ([*FLIPPED, step_ended(1), step(2)], "backgrounded"),
        (IDLE, "backgrounded"),
        ([*begun(), said(call()), attempted(), result()], "ended_before"),
        ([*begun(), said(call()), attempted(), result(), step_ended(1)], "ended_before"),
        ([*IDLE, notified()], "ended_before"),
        ([STARTED], "ended_before"),
    ],
)
def test_a_background_request_gets_an_outcome(log: list[Body], outcome: str) -> None:
    written = appended(state_of(*log), deciding(inbox=put(to_background())))
    assert written == Append(promotes=[Promoted(1, outcome)])


def test_each_of_several_background_requests_gets_an_outcome() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")), result("c1"), attempted("c2"))
    inbox = put(to_background("t2", call="c2"), to_background("t1", call="c1"))
    inputs = deciding(inbox=inbox, running=["c2"], backgrounded=frozenset({"c2"}), facts={"c2": HERE})
    assert appended(state, inputs).promotes == [Promoted(2, "ended_before")]


def test_a_stop_takes_precedence_over_a_background_request() -> None:
    state = state_of(*begun(), said(call()), attempted())
    inbox = put(to_background(), stops())
    assert decided(state, deciding(inbox=inbox, running=["c1"], facts={"c1": HERE})) == Interrupt()
    state = after(state, appended(state, deciding(inbox=inbox, facts={"c1": HERE})))
    assert appended(state, deciding(inbox=inbox[:1])).promotes == [Promoted(1, "ended_before")]


def test_a_holder_that_takes_over_answers_a_background_request() -> None:
    written = appended(state_of(*FLIPPED), deciding(inbox=put(to_background()), takeover=(Fence(7), "n")))
    assert kinds(written) == ["Claimed"]
    assert written.promotes == [Promoted(1, "backgrounded")]


# A copy


def test_a_copy_of_a_session_learns_that_the_tasks_are_not_its_own() -> None:
    state = state_of(*IDLE)
    bodies = tasks_of_source(state)
    assert [(body.notice.task_id, body.notice.kind) for body in bodies if isinstance(body, TaskNotified)] == [
        ("t9", "lost")
    ]
    assert fold(at(bodies, after=state.head), state).tasks == {}
