"""Tool calls are run, asked about, given to clients, refused, or left in doubt by a crash."""

import pytest

from holdfast.events import message, request, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import ToolOutcome
from holdfast.events.ids import RequestId, ToolCallId
from holdfast.events.request import PermissionAsk
from holdfast.session.actions import Append, Interrupt, Opened, Pause, Release, RunTools
from holdfast.session.bounds import Bounds
from holdfast.session.inputs import CallFacts
from holdfast.session.state import State
from holdfast.session.tool_results import DENIED, UNKNOWN_OUTCOME, preview
from holdfast.session.tool_step import REPEATED_LINE
from tests.session.logs import (
    ASKS,
    HERE,
    STARTED,
    TURN,
    after,
    appended,
    attempted,
    begun,
    call,
    decided,
    deciding,
    kinds,
    plain_context,
    result,
    said,
    state_of,
    step,
    step_ended,
    text,
)

AGAIN = CallFacts(where="here", repeatable=True)
CLIENT = CallFacts(where="client", repeatable=True)
QUESTION = CallFacts(where="person", question="Which?", choices=("a", "b"), allow_freeform=False, repeatable=True)
ONE_CALL = [said(call(arguments='{"path": "a.txt"}'))]


def one_result(state: State, facts: CallFacts) -> tool.ToolCompleted:
    (completed,) = appended(state, deciding(facts={"c1": facts})).events
    assert isinstance(completed, tool.ToolCompleted)
    return completed


def test_all_calls_of_a_step_start_at_once() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2"), call("c3")), result("c2"))
    action = decided(state, deciding(facts={"c1": HERE, "c3": HERE}))
    assert isinstance(action, RunTools)
    assert [found.tool_call_id for found in action.calls] == ["c1", "c3"]


def test_a_running_call_is_not_started_again() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")), attempted("c1"))
    action = decided(state, deciding(running=["c1"], facts={"c1": HERE, "c2": HERE}))
    assert isinstance(action, RunTools)
    assert [found.tool_call_id for found in action.calls] == ["c2"]
    everything = deciding(running=["c1", "c2"], facts={"c1": HERE, "c2": HERE})
    assert decided(state, everything) == Pause()


def test_the_step_ends_when_all_results_are_recorded() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")), result("c1"), result("c2"))
    assert kinds(appended(state)) == ["StepEnded", "StepStarted"]


def test_parallel_calls_of_the_same_name_never_swap_results() -> None:
    log = [*begun(), said(call("c1", "view", "1"), call("c2", "view", "2"), call("c3", "view", "1"))]
    state = state_of(*log, result("c3", "three"), result("c1", "one"), result("c2", "two"))
    assert [(item.tool_call_id, item.text) for item in plain_context(state) if isinstance(item, ToolOutcome)] == [
        ("c1", "one"),
        ("c2", "two"),
        ("c3", "three"),
    ]


# In doubt after a crash


def test_an_attempt_without_a_result_is_reported_as_unknown() -> None:
    completed = one_result(state_of(*begun(), said(call()), attempted()), HERE)
    assert (completed.content, completed.error, completed.success) == (UNKNOWN_OUTCOME, "interrupted", False)


def test_a_repeatable_tool_is_attempted_again() -> None:
    state = state_of(*begun(), said(call()), attempted())
    action = decided(state, deciding(facts={"c1": AGAIN}))
    assert isinstance(action, RunTools)
    assert action.calls[0].attempts == 1


def test_a_call_without_an_attempt_is_not_in_doubt() -> None:
    assert isinstance(decided(state_of(*begun(), said(call())), deciding(facts={"c1": HERE})), RunTools)


def test_a_recorded_result_is_never_run_again() -> None:
    state = state_of(*begun(), said(call()), attempted(), result())
    assert kinds(appended(state, deciding(facts={}))) == ["StepEnded", "StepStarted"]


# Refused


def test_a_call_of_an_unknown_tool_fails_as_the_models_error() -> None:
    completed = one_result(state_of(*begun(), said(call())), CallFacts(where="nowhere", error="No such tool."))
    assert (completed.content, completed.error) == ("No such tool.", "unknown_tool")


def test_invalid_arguments_fail_as_the_models_error() -> None:
    facts = CallFacts(where="nowhere", error="Expected a path.", error_code="invalid_arguments")
    completed = one_result(state_of(*begun(), said(call())), facts)
    assert (completed.content, completed.error) == ("Expected a path.", "invalid_arguments")


def test_a_refused_call_does_not_delay_the_others() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")))
    facts = {"c1": CallFacts(where="nowhere", error="No."), "c2": HERE}
    written = appended(state, deciding(facts=facts))
    assert kinds(written) == ["ToolCompleted"]
    assert isinstance(decided(after(state, written), deciding(facts=facts)), RunTools)


# Permissions


def asking(kind: request.PermissionKind, subject: str, *, inside: bool = True) -> CallFacts:
    return CallFacts(where="here", ask=PermissionAsk(kind=kind, subject=subject, inside=inside))


def test_a_call_that_needs_permission_opens_a_request_and_the_turn_waits() -> None:
    state = state_of(*begun(), *ONE_CALL)
    written = appended(state, deciding(facts={"c1": ASKS}))
    assert written.events == [
        request.PermissionRequested(
            request_id=RequestId("n1"),
            tool_call_id=ToolCallId("c1"),
            tool_name="write",
            kind="write",
            subject="a.txt",
            rule="write",
        )
    ]
    assert written.opens == [Opened(RequestId("n1"), "permission", ToolCallId("c1"), "write a.txt")]
    state = after(state, written)
    waiting = appended(state, deciding(facts={"c1": ASKS}))
    assert waiting.events == [turn.TurnWaiting(turn_id=TURN, reason="requests", request_ids=(RequestId("n1"),))]
    assert decided(after(state, waiting), deciding(facts={"c1": ASKS})) == Release()


def test_an_allowed_call_runs_without_a_request() -> None:
    assert isinstance(decided(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": asking("read", "a.txt")})), RunTools)


@pytest.mark.parametrize(("unattended", "facts"), [(True, ASKS), (False, asking("read", "/etc/passwd", inside=False))])
def test_a_denied_call_gets_a_result_that_the_model_reads(unattended: bool, facts: CallFacts) -> None:
    completed = one_result(state_of(*begun(unattended=unattended), *ONE_CALL), facts)
    assert (completed.content, completed.error) == (DENIED, "denied")


def test_a_call_that_the_session_was_granted_needs_no_request() -> None:
    granted = session.SessionStarted(session_id=STARTED.session_id, producer="", start_time=0, allow=("write(a.*)",))
    state = state_of(granted, *begun()[1:], *ONE_CALL)
    assert isinstance(decided(state, deciding(facts={"c1": ASKS})), RunTools)
    other = asking("write", "b.txt")
    assert kinds(appended(state, deciding(facts={"c1": other}))) == ["PermissionRequested"]


def test_each_call_of_a_step_has_its_share_of_the_work_on_patterns() -> None:
    """Reads that no rule is needed for have none."""
    allow = (*(f"write(*[a]b{number}*)" for number in range(8)), "write(*[a].txt)")
    granted = session.SessionStarted(session_id=STARTED.session_id, producer="", start_time=0, allow=allow)
    reads = {f"r{number}": asking("read", "a.txt") for number in range(20)}
    facts = {"costly": asking("write", "a" * 3_000), "c2": asking("write", "a" * 300 + ".txt"), **reads}
    state = state_of(granted, *begun()[1:], said(*(call(name) for name in facts)))
    written = appended(state, deciding(facts=facts))
    assert [opened.tool_call_id for opened in written.opens] == ["costly"]


def test_a_grant_for_the_folder_applies_until_it_is_revoked() -> None:
    state = state_of(*begun()[:1], session.SettingsChanged(place_rules=("write",)), *begun()[1:], *ONE_CALL)
    still = deciding(facts={"c1": ASKS}, granted=frozenset({"write"}))
    assert isinstance(decided(state, still), RunTools)
    assert kinds(appended(state, deciding(facts={"c1": ASKS}))) == ["PermissionRequested"]


def test_other_calls_run_while_one_waits_for_a_person() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")))
    facts = {"c1": ASKS, "c2": HERE}
    state = after(state, appended(state, deciding(facts=facts)))
    action = decided(state, deciding(facts=facts))
    assert isinstance(action, RunTools)
    assert [found.tool_call_id for found in action.calls] == ["c2"]
    assert decided(state, deciding(facts=facts, running=["c2"])) == Pause()


def test_a_huge_subject_gets_a_short_title_and_is_shown_in_full_in_the_request() -> None:
    written = appended(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": asking("shell", "x" * 5_000)}))
    assert len(written.opens[0].title) == 200
    asked = written.events[0]
    assert isinstance(asked, request.PermissionRequested)
    assert len(asked.subject) == 5_000


# Client tools and questions


def test_a_call_of_a_clients_tool_opens_a_request() -> None:
    written = appended(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": CLIENT}))
    assert written.events == [
        request.ExternalToolRequested(
            request_id=RequestId("n1"),
            tool_call_id=ToolCallId("c1"),
            tool_name="write",
            arguments='{"path": "a.txt"}',
        )
    ]
    assert written.opens == [Opened(RequestId("n1"), "client_tool", ToolCallId("c1"), "write")]


def test_a_clients_tool_may_need_permission_first() -> None:
    facts = CallFacts(where="client", ask=PermissionAsk(kind="custom-tool", subject="lamp"), repeatable=True)
    state = state_of(*begun(), *ONE_CALL)
    asked = appended(state, deciding(facts={"c1": facts}))
    assert kinds(asked) == ["PermissionRequested"]
    approved = request.PermissionCompleted(
        request_id=RequestId("n1"), tool_call_id=ToolCallId("c1"), decision="approved"
    )
    log: list[Body] = [*begun(), *ONE_CALL, *asked.events, approved]
    assert kinds(appended(state_of(*log), deciding(facts={"c1": facts}))) == ["ExternalToolRequested"]


def test_an_approval_covers_only_the_call_that_was_asked_about() -> None:
    """A link that points elsewhere after the approval makes it another call."""
    asked = appended(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": asking("write", "a.txt")}))
    approved = request.PermissionCompleted(
        request_id=RequestId("n1"), tool_call_id=ToolCallId("c1"), decision="approved"
    )
    state = state_of(*begun(), *ONE_CALL, *asked.events, approved)
    assert isinstance(decided(state, deciding(facts={"c1": asking("write", "a.txt")})), RunTools)
    assert kinds(appended(state, deciding(facts={"c1": asking("write", "b.txt")}))) == ["PermissionRequested"]


def test_a_turn_without_a_worker_still_records_its_open_request() -> None:
    """The turn was recorded as lacking a worker while a request was open: the next holder records the request."""
    asked = appended(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": ASKS}))
    noted = turn.TurnWaiting(turn_id=TURN, reason="no eligible worker")
    state = state_of(*begun(), *ONE_CALL, *asked.events, noted)
    written = appended(state, deciding(facts={"c1": ASKS}))
    assert [body.reason for body in written.events if isinstance(body, turn.TurnWaiting)] == ["requests"]


def test_a_question_is_put_to_the_person() -> None:
    written = appended(state_of(*begun(), *ONE_CALL), deciding(facts={"c1": QUESTION}))
    assert written.events == [
        request.UserInputRequested(
            request_id=RequestId("n1"),
            tool_call_id=ToolCallId("c1"),
            question="Which?",
            choices=("a", "b"),
            allow_freeform=False,
        )
    ]
    assert written.opens[0].kind == "question"


# The same call over and over


def repeated(times: int, *, warned: bool = False) -> State:
    """A state after the same call in `times` steps, the last of which is running its tools."""
    log = begun()
    for number in range(1, times + 1):
        log.append(said(call(f"c{number}", "view", '{"path": "a"}'), id=f"m{number}"))
        if number < times:
            log += [result(f"c{number}"), step_ended(number)]
            if warned and number == times - 1:
                log.append(message.Noted(text=REPEATED_LINE, reason="repeated call"))
            log.append(step(number + 1))
    return state_of(*log)


def test_one_repetition_too_many_of_a_call_warns_the_model() -> None:
    bounds = Bounds(max_same_calls=2)
    state = fold_result(repeated(2), "c2")
    assert kinds(appended(state, deciding(bounds=bounds))) == ["StepEnded", "StepStarted"]
    state = fold_result(repeated(3), "c3")
    warned = appended(state, deciding(bounds=bounds))
    assert kinds(warned) == ["StepEnded", "Noted", "StepStarted"]
    assert warned.events[1] == message.Noted(text=REPEATED_LINE, reason="repeated call")


def test_repeating_a_call_after_the_warning_ends_the_turn_without_running_it() -> None:
    bounds = Bounds(max_same_calls=2)
    written = appended(repeated(4, warned=True), deciding(bounds=bounds, facts={"c4": HERE}))
    assert kinds(written) == ["ToolCompleted", "StepEnded", "SessionError", "TurnEnded"]
    error = written.events[2]
    assert isinstance(error, session.SessionError)
    assert error.code == "repeated_call"
    interrupting = deciding(bounds=bounds, facts={"c4": HERE}, running=["c4"])
    assert decided(repeated(4, warned=True), interrupting) == Interrupt()


def test_a_different_call_after_the_warning_runs() -> None:
    bounds = Bounds(max_same_calls=2)
    log = begun()
    for number in (1, 2, 3):
        log += [said(call(f"c{number}"), id=f"m{number}"), result(f"c{number}"), step_ended(number)]
        if number == 3:
            log.append(message.Noted(text=REPEATED_LINE, reason="repeated call"))
        log.append(step(number + 1))
    state = state_of(*log, said(call("c4", "other"), id="m4"))
    assert isinstance(decided(state, deciding(bounds=bounds, facts={"c4": HERE})), RunTools)


def fold_result(state: State, id: str) -> State:
    return after(state, Append(events=[result(id)]))


# Results and text


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_result_that_fits_has_no_preview(length: int) -> None:
    assert preview("x" * length, 40, ToolCallId("c1")) is None


def test_a_preview_keeps_both_ends_and_states_how_much_is_missing() -> None:
    words = "a" * 60 + "b" * 60
    shown = preview(words, 40, ToolCallId("c1"))
    assert shown is not None
    assert shown.startswith("a" * 30 + "\n\n[… 80 of 120 characters")
    assert shown.endswith("]\n\n" + "b" * 10)


def test_a_step_with_text_and_calls_continues_after_its_calls() -> None:
    state = state_of(*begun(), said(text("Let me look."), call()), result())
    assert kinds(appended(state)) == ["StepEnded", "StepStarted"]
