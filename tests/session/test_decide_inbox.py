"""The inbox is handled first: answers up to the first stop, then the stop, which ends only the turn that it names."""

import msgspec
import pytest

from holdfast.events import message, request, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import AssistantTurn, UserText
from holdfast.events.ids import Fence, RequestId, ToolCallId
from holdfast.events.inbox import PermissionAnswer, QuestionAnswer, Stop, StopCause, ToolAnswer, UnknownItem
from holdfast.events.request import Decision
from holdfast.session.actions import Append, Interrupt, Promoted, Release, RunTools
from holdfast.session.bounds import Bounds
from holdfast.session.endings import STOPPED_LINE
from holdfast.session.fold import INTERRUPTED
from holdfast.session.history import context
from holdfast.session.inputs import MODEL, InterruptedCall
from holdfast.session.state import Phase, State
from holdfast.session.tool_results import REJECTED, UNKNOWN_OUTCOME
from tests.session.logs import (
    ASKS,
    HERE,
    STARTED,
    TURN,
    after,
    answers,
    appended,
    attempted,
    begun,
    call,
    decided,
    deciding,
    kinds,
    plain_context,
    put,
    result,
    said,
    sends,
    state_of,
    step_ended,
    stops,
    text,
)

R1, C1 = RequestId("r1"), ToolCallId("c1")
PERMISSION = request.PermissionRequested(
    request_id=R1, tool_call_id=C1, tool_name="write", kind="write", subject="a.txt", rule="write"
)
CLIENT = request.ExternalToolRequested(request_id=R1, tool_call_id=C1, tool_name="lamp", arguments="{}")
QUESTION = request.UserInputRequested(request_id=R1, tool_call_id=C1, question="Which?")
WAITING = turn.TurnWaiting(turn_id=TURN, reason="requests", request_ids=(R1,))
APPROVED = PermissionAnswer(decision="approved")


def waiting_for(asked: Body) -> State:
    return state_of(*begun(), said(call()), asked, WAITING)


# Answers


def test_an_approval_closes_its_request_and_the_call_may_run() -> None:
    state = waiting_for(PERMISSION)
    written = appended(state, deciding(inbox=put(answers(APPROVED))))
    completed = request.PermissionCompleted(
        request_id=R1, tool_call_id=C1, decision="approved", feedback="", answered_by="ann"
    )
    assert written.events == [completed]
    assert (written.closes, written.promotes) == ([R1], [Promoted(1, "answered")])
    state = after(state, written)
    assert state.phase is Phase.RUNNING_TOOLS
    action = decided(state, deciding(facts={"c1": ASKS}))
    assert isinstance(action, RunTools)
    assert [found.tool_call_id for found in action.calls] == ["c1"]
    assert state.allow == []


def test_an_approval_for_the_session_is_asked_for_only_once() -> None:
    state = waiting_for(PERMISSION)
    answer = answers(PermissionAnswer(decision="approved-for-session"))
    state = after(state, appended(state, deciding(inbox=put(answer))))
    assert state.allow == ["write"]


@pytest.mark.parametrize("decision", ["denied-interactively-by-user", "cancelled"])
def test_a_denial_is_the_result_of_the_call_with_what_the_person_said(decision: Decision) -> None:
    answer = answers(PermissionAnswer(decision=decision, feedback="Use b.txt."))
    written = appended(waiting_for(PERMISSION), deciding(inbox=put(answer)))
    assert kinds(written) == ["PermissionCompleted", "ToolCompleted"]
    rejected = written.events[1]
    assert isinstance(rejected, tool.ToolCompleted)
    assert (rejected.content, rejected.success, rejected.error) == (f"{REJECTED} Use b.txt.", False, "rejected")


@pytest.mark.parametrize(("success", "error"), [(True, None), (False, "failed")])
def test_a_clients_result_is_recorded_with_the_answer(success: bool, error: str | None) -> None:
    written = appended(waiting_for(CLIENT), deciding(inbox=put(answers(ToolAnswer(content="on", success=success)))))
    assert kinds(written) == ["ExternalToolCompleted", "ToolCompleted"]
    completed = written.events[1]
    assert isinstance(completed, tool.ToolCompleted)
    assert (completed.content, completed.success, completed.error) == ("on", success, error)


def test_a_clients_long_result_is_kept_whole_with_a_preview() -> None:
    words = "x" * 100 + "end"
    inputs = deciding(inbox=put(answers(ToolAnswer(content=words))), bounds=Bounds(max_tool_characters=40))
    completed = appended(waiting_for(CLIENT), inputs).events[1]
    assert isinstance(completed, tool.ToolCompleted)
    assert completed.content == words
    assert completed.preview is not None
    assert completed.preview.startswith("x" * 30)
    assert completed.preview.endswith("end")
    assert "tool_call_id c1, offset 30" in completed.preview


@pytest.mark.parametrize(("freeform", "told"), [(True, "User responded: blue"), (False, "User selected: blue")])
def test_the_answer_to_a_question_is_the_result_of_the_call(freeform: bool, told: str) -> None:
    answer = answers(QuestionAnswer(answer="blue", was_freeform=freeform))
    written = appended(waiting_for(QUESTION), deciding(inbox=put(answer)))
    assert kinds(written) == ["UserInputCompleted", "ToolCompleted"]
    completed = written.events[1]
    assert isinstance(completed, tool.ToolCompleted)
    assert completed.content == told


def test_an_answer_to_a_closed_request_is_refused_and_changes_nothing() -> None:
    written = appended(state_of(*begun()), deciding(inbox=put(answers(APPROVED))))
    assert written == Append(promotes=[Promoted(1, "request_closed", refused=True)])


def test_answers_to_several_requests_are_promoted_in_one_unit() -> None:
    second = request.UserInputRequested(request_id=RequestId("r2"), tool_call_id=ToolCallId("c2"), question="?")
    state = state_of(*begun(), said(call("c1"), call("c2")), PERMISSION, second, WAITING)
    inbox = put(answers(QuestionAnswer(answer="x"), "r2"), sends("Also this"), answers(APPROVED))
    written = appended(state, deciding(inbox=inbox))
    assert kinds(written) == ["UserInputCompleted", "ToolCompleted", "PermissionCompleted"]
    assert [found.sequence for found in written.promotes] == [1, 3]


# Stops


def test_an_answer_before_a_stop_counts_and_the_approved_call_is_not_run() -> None:
    state = waiting_for(PERMISSION)
    inbox = put(answers(APPROVED), stops())
    first = appended(state, deciding(inbox=inbox))
    assert kinds(first) == ["PermissionCompleted"]
    state = after(state, first)
    then = appended(state, deciding(inbox=inbox[1:], facts={"c1": ASKS}))
    assert kinds(then) == ["Aborted", "ToolCompleted", "StepEnded", "TurnEnded"]
    interrupted = then.events[1]
    assert isinstance(interrupted, tool.ToolCompleted)
    assert interrupted.content == "The user stopped the turn before this tool was run."
    assert interrupted.error == "interrupted"
    assert then.promotes == [Promoted(2, "stopped")]


def test_an_answer_after_a_stop_does_not_count() -> None:
    inbox = put(stops(), answers(APPROVED))
    stopped = appended(waiting_for(PERMISSION), deciding(inbox=inbox))
    closed = stopped.events[1]
    assert isinstance(closed, request.PermissionCompleted)
    assert closed.decision == "cancelled"
    assert stopped.closes == [R1]
    assert [found.sequence for found in stopped.promotes] == [1]


def test_a_stop_for_an_ended_turn_does_not_stop_the_next_one() -> None:
    written = appended(state_of(*begun()), deciding(inbox=put(stops("t0"))))
    assert written == Append(promotes=[Promoted(1, "turn_ended_before")])


def test_a_stop_without_a_turn_is_only_promoted() -> None:
    assert appended(state_of(STARTED), deciding(inbox=put(stops()))) == Append(
        promotes=[Promoted(1, "turn_ended_before")]
    )


def test_a_stop_interrupts_running_activities_before_it_writes() -> None:
    assert decided(state_of(*begun()), deciding(inbox=put(stops()), running=[MODEL])) == Interrupt()
    running = state_of(*begun(), said(call()), attempted())
    assert decided(running, deciding(inbox=put(stops()), running=["c1"], facts={"c1": HERE})) == Interrupt()


@pytest.mark.parametrize(
    ("log", "shown", "written"),
    [
        ([], (), ["Aborted", "StepEnded", "Noted", "TurnEnded"]),
        ([], (text("Half"),), ["Aborted", "AssistantMessage", "StepEnded", "Noted", "TurnEnded"]),
        (
            [],
            (text("Half"), call("c9")),
            ["Aborted", "AssistantMessage", "ToolCompleted", "StepEnded", "Noted", "TurnEnded"],
        ),
        ([said(text("Whole."))], (), ["Aborted", "StepEnded", "Noted", "TurnEnded"]),
        ([said(call())], (), ["Aborted", "ToolCompleted", "StepEnded", "TurnEnded"]),
        ([said(call()), result()], (), ["Aborted", "StepEnded", "Noted", "TurnEnded"]),
        (
            [said(call()), PERMISSION, WAITING],
            (),
            ["Aborted", "PermissionCompleted", "ToolCompleted", "StepEnded", "TurnEnded"],
        ),
        (
            [said(call()), CLIENT, WAITING],
            (),
            ["Aborted", "ExternalToolCompleted", "ToolCompleted", "StepEnded", "TurnEnded"],
        ),
        (
            [said(call()), QUESTION, WAITING],
            (),
            ["Aborted", "UserInputCompleted", "ToolCompleted", "StepEnded", "TurnEnded"],
        ),
        ([said(text("Done.")), step_ended(1)], (), ["Aborted", "Noted", "TurnEnded"]),
    ],
)
def test_a_stop_ends_the_turn_in_any_phase_and_leaves_nothing_open(
    log: list[Body], shown: tuple[message.Block, ...], written: list[str]
) -> None:
    state = state_of(*begun(), *log)
    stopped = appended(state, deciding(inbox=put(stops()), shown=shown, facts={"c1": HERE}))
    assert kinds(stopped) == written
    assert stopped.drops_segments
    ended = stopped.events[-1]
    assert isinstance(ended, turn.TurnEnded)
    assert ended.reason == "stopped"
    state = after(state, stopped)
    assert (state.phase, state.turn, state.requests) == (Phase.IDLE, None, {})
    assert decided(state) == Release()


def test_text_shown_before_a_stop_is_kept_unchanged() -> None:
    blocks = (text("Half a sen"), call("c9", "write", '{"a'))
    stopped = appended(state_of(*begun()), deciding(inbox=put(stops()), shown=blocks))
    assert stopped.events[1] == said(*blocks, interrupted=True)


@pytest.mark.parametrize(
    ("found", "rest"),
    [
        (None, " while this tool ran. Whether it took effect is unknown: check before doing it again."),
        (
            InterruptedCall(has_ended=False),
            " while this tool ran. It was told to end, but was still running then: it may still take effect.",
        ),
        (
            InterruptedCall(has_ended=True),
            " while this tool ran, which was ended. What it had done by then stays: check before doing it again.",
        ),
        (
            InterruptedCall(has_ended=True, known="The command was killed."),
            " while this tool ran, which was ended. What is known of it:\nThe command was killed.",
        ),
    ],
)
@pytest.mark.parametrize(
    ("cause", "by"),
    [
        ("stopped", "The user stopped the turn"),
        ("suspended", "The session was suspended"),
        ("not continued", "The session was resumed without this turn"),
    ],
)
def test_the_result_of_a_stopped_call_names_the_cause_and_the_known_output(
    found: InterruptedCall | None, rest: str, cause: StopCause, by: str
) -> None:
    state = state_of(*begun(), said(call()), attempted())
    known = {"c1": found} if found is not None else {}
    stop = Stop(stop_id="s", turn_id=TURN, cause=cause)
    stopped = appended(state, deciding(inbox=put(stop), facts={"c1": HERE}, interrupted=known))
    (completed,) = [body for body in stopped.events if isinstance(body, tool.ToolCompleted)]
    assert (completed.content, completed.error, completed.success) == (by + rest, "interrupted", False)


def test_a_call_that_a_crash_interrupted_is_not_attributed_to_a_person() -> None:
    state = state_of(*begun(), said(call()), attempted())
    (completed,) = appended(state, deciding(facts={"c1": HERE})).events
    assert isinstance(completed, tool.ToolCompleted)
    assert completed.content == UNKNOWN_OUTCOME
    given_up = deciding(claims_without_progress=Bounds().max_claims_without_progress + 1, facts={"c1": HERE})
    poisoned = appended(state, given_up).events[0]
    assert isinstance(poisoned, tool.ToolCompleted)
    assert poisoned.content == UNKNOWN_OUTCOME


def test_long_output_of_a_stopped_call_is_previewed_for_the_model() -> None:
    state = state_of(*begun(), said(call()), attempted())
    known = {"c1": InterruptedCall(has_ended=True, known="x" * 500)}
    inputs = deciding(inbox=put(stops()), facts={"c1": HERE}, interrupted=known, bounds=Bounds(max_tool_characters=100))
    completed = appended(state, inputs).events[1]
    assert isinstance(completed, tool.ToolCompleted)
    assert completed.content.endswith("x" * 500)
    assert completed.preview is not None
    assert len(completed.preview) < len(completed.content)


@pytest.mark.parametrize("shown", [(), (text("Half a sen"),)])
def test_after_a_stop_in_mid_reply_the_model_gets_its_partial_reply_and_a_note_of_the_stop(
    shown: tuple[message.Block, ...],
) -> None:
    state = state_of(*begun())
    before = plain_context(state)
    stopped = after(state, appended(state, deciding(inbox=put(stops()), shown=shown)))
    cut = [AssistantTurn("Half a sen")] if shown else []
    told = (*before, *cut, UserText(STOPPED_LINE))
    assert plain_context(stopped) == told
    started = after(stopped, appended(stopped, deciding(inbox=put(sends("Go on")))))
    assert plain_context(started) == (*told, UserText("Go on")), "what was sent stays the beginning"


def test_a_stopped_call_reports_the_stop_to_the_model_once() -> None:
    state = state_of(*begun(), said(call()), attempted())
    stopped = after(state, appended(state, deciding(inbox=put(stops()), facts={"c1": HERE})))
    told = [found for found in context(stopped) if "The user stopped" in str(found)]
    assert len(told) == 1


def test_copilot_sessions_close_stopped_calls_in_copilots_words_and_report_the_stop_to_the_model() -> None:
    started = msgspec.structs.replace(STARTED, conventions="copilot")
    state = state_of(started, *begun()[1:], said(call()), attempted())
    stopped = appended(state, deciding(inbox=put(stops()), facts={"c1": HERE}))
    completed = stopped.events[1]
    assert isinstance(completed, tool.ToolCompleted)
    assert completed.content == INTERRUPTED
    assert message.Noted(text=STOPPED_LINE, reason="stopped") in stopped.events


def test_a_message_after_a_stop_waits_for_the_end_of_the_turn() -> None:
    inbox = put(stops(), sends("Instead"), while_running=True)
    stopped = appended(state_of(*begun()), deciding(inbox=inbox))
    assert "UserMessage" not in kinds(stopped)
    state = after(state_of(*begun()), stopped)
    started = appended(state, deciding(inbox=inbox[1:]))
    assert kinds(started)[:2] == ["TurnStarted", "UserMessage"]
    assert started.promotes == [Promoted(2, "queued")]


# Eligibility and takeover


def test_a_process_that_may_not_run_a_turn_records_that_once_and_releases_it() -> None:
    state = state_of(*begun())
    written = appended(state, deciding(eligible=False))
    assert written.events == [turn.TurnWaiting(turn_id=TURN, reason="no eligible worker")]
    assert decided(after(state, written), deciding(eligible=False)) == Release(for_another=True)


def test_a_process_that_may_not_run_a_session_starts_no_turn_and_records_once_that_it_waits() -> None:
    unable = deciding(eligible=False, inbox=put(sends("Hi")))
    written = appended(state_of(STARTED), unable)
    assert [body.info_type for body in written.events if isinstance(body, session.SessionInfo)] == [
        "no_eligible_worker"
    ]
    assert written.promotes == []
    assert decided(after(state_of(STARTED), written), unable) == Release(for_another=True)


def test_a_session_with_nothing_left_to_do_does_not_wait_for_another_process() -> None:
    """As after a stop in a process that could not run the turn: no later write would ever clear the wait."""
    assert decided(state_of(STARTED), deciding(eligible=False)) == Release()
    unread = deciding(eligible=False, inbox=put(FUTURE))
    assert decided(state_of(STARTED), unread) == Release(for_newer=True)


def test_a_process_that_may_not_run_a_turn_may_still_stop_it_and_promote_its_answers() -> None:
    stopped = appended(state_of(*begun()), deciding(eligible=False, inbox=put(stops())))
    assert kinds(stopped)[-1] == "TurnEnded"
    answered = appended(waiting_for(QUESTION), deciding(eligible=False, inbox=put(answers(QuestionAnswer(answer="x")))))
    assert kinds(answered) == ["UserInputCompleted", "ToolCompleted"]


@pytest.mark.parametrize("log", [[], [said(call())], [said(call()), QUESTION, WAITING], [said(text("x"))]])
def test_a_holder_that_takes_over_a_turn_records_it_with_its_first_write(log: list[Body]) -> None:
    state = state_of(*begun(), *log)
    written = appended(state, deciding(takeover=(Fence(7), "node-2"), facts={"c1": HERE}))
    assert written.events[0] == turn.Claimed(fence=Fence(7), node="node-2")


def test_claiming_an_idle_session_writes_nothing() -> None:
    assert decided(state_of(STARTED), deciding(takeover=(Fence(7), "n"))) == Release()
    assert "Claimed" not in kinds(
        appended(state_of(STARTED), deciding(takeover=(Fence(7), "n"), inbox=put(sends("Hi"))))
    )


# Items of a newer release


FUTURE = UnknownItem(kind="from_the_future", payload=msgspec.Raw(b'{"kind":"from_the_future"}'))


def test_an_item_of_a_newer_release_is_left_for_that_release_once_all_else_is_done() -> None:
    assert decided(state_of(), deciding(inbox=put(FUTURE))) == Release(for_newer=True)
    assert decided(waiting_for(PERMISSION), deciding(inbox=put(FUTURE))) == Release(for_newer=True)
    assert decided(waiting_for(PERMISSION), deciding()) == Release()


def test_items_after_one_of_a_newer_release_are_promoted_regardless_of_it() -> None:
    for state, item in (
        (state_of(), sends("hello")),
        (waiting_for(PERMISSION), answers(APPROVED)),
        (waiting_for(PERMISSION), stops()),
    ):
        _, known = behind = put(FUTURE, item)
        written = appended(state, deciding(inbox=behind))
        assert [promotion.sequence for promotion in written.promotes] == [known.sequence]


def test_a_message_of_a_newer_release_does_not_steer_a_running_turn() -> None:
    state = state_of(*begun(), said(call()), result())
    written = appended(state, deciding(inbox=put(FUTURE)))
    assert written.promotes == []
