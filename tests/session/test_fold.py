"""Any log can be folded, at once or in parts, and the history that the model is sent is always well formed."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.events import message, quote, request, session, turn
from holdfast.events.body import Body
from holdfast.events.context import AssistantTurn, ContextMessage, Reasoning, SystemText, ToolOutcome, UserText
from holdfast.events.event import Event, Unknown
from holdfast.events.ids import EventId, MessageId, Position, RequestId, ToolCallId
from holdfast.events.request import Decision
from holdfast.events.tool import ToolCompleted
from holdfast.protocol.event import EventView
from holdfast.server.reader import as_read
from holdfast.session.fold import INTERRUPTED, apply, drop_texts, dump, fold, fold_turn, restore
from holdfast.session.history import context
from holdfast.session.permissions import MAX_SESSION_RULES
from holdfast.session.prompt import RULES, Prompt
from holdfast.session.state import HistoryItem, ModelReply, Phase, State, Summary, ToolCall
from holdfast.session.tokens import ContextSize
from tests.events.bodies import any_body, built
from tests.session.logs import (
    STARTED,
    TURN,
    at,
    attempted,
    begun,
    call,
    failed,
    plain_context,
    result,
    said,
    state_of,
    step,
    step_ended,
    text,
    turn_ended,
    user,
)

FEW_IDS = st.sampled_from(["a", "b", "c", ""])
TALK = (turn.TurnStarted, turn.StepStarted, message.AssistantMessage, ToolCompleted, turn.StepEnded)
ANY_LOG = st.lists(
    any_body(FEW_IDS) | st.one_of([built(kind, FEW_IDS) for kind in TALK]), min_size=4, max_size=40
) | st.lists(any_body(FEW_IDS), max_size=3)
"""Any events in any order, with ids that collide; most of them those that make up a conversation."""


def paired(messages: tuple[ContextMessage, ...]) -> bool:
    """Whether every assistant message with calls is followed by one result for each, in the order of the calls."""
    rest = list(messages)
    while rest:
        match rest.pop(0):
            case AssistantTurn(tool_calls=calls):
                results = [rest.pop(0) for _ in calls if rest]
                given_to = [found.tool_call_id for found in results if isinstance(found, ToolOutcome)]
                if given_to != [use.tool_call_id for use in calls]:
                    return False
            case ToolOutcome():
                return False
            case SystemText() | UserText():
                pass
    return True


@settings(max_examples=200, deadline=None)
@given(bodies=ANY_LOG)
@example(bodies=[said(call())])
@example(bodies=[said(call("c1"), call("c1"))])
@example(bodies=[*begun(), said(call("c1"), call("c2")), result("c2"), said(call("c3"), id="m2"), user()])
@example(bodies=[*begun(), said(call()), user(), result()])
@example(bodies=[result(), said(call(), interrupted=True), result()])
def test_no_log_makes_an_orphan_call_or_result_reach_a_model(bodies: list[Body]) -> None:
    state = State()
    for event in at(bodies):
        apply(state, event)
        messages = context(state)
        assert isinstance(messages[0], SystemText)
        assert paired(messages)
    assert state.head == len(bodies)


def test_the_pairing_check_notices_an_orphan() -> None:
    ((use,),) = [item.tool_calls for item in context(state_of(*begun(), said(call()))) if hasattr(item, "tool_calls")]
    orphan, good = AssistantTurn("", (use,)), ToolOutcome(ToolCallId("c1"), "done")
    assert paired((orphan, good))
    assert not paired((orphan,))
    assert not paired((orphan, UserText("Hi"), good))
    assert not paired((orphan, good, good))
    assert not paired((AssistantTurn("", (use, use)), good))


@settings(max_examples=150, deadline=None)
@given(bodies=ANY_LOG, cut=st.integers(0, 40))
def test_folding_in_two_parts_equals_folding_the_whole_also_through_a_snapshot(bodies: list[Body], cut: int) -> None:
    events = at(bodies)
    whole = dump(fold(events))
    assert dump(fold(events[cut:], fold(events[:cut]))) == whole
    assert dump(fold(events[cut:], restore(dump(fold(events[:cut]))))) == whole


@settings(max_examples=150, deadline=None)
@given(bodies=ANY_LOG, cut=st.integers(0, 40))
@example(bodies=[*begun(), said(call("c1"), call("c2")), result("c2")], cut=4)
@example(bodies=[*begun(), user(), session.Truncated(kept=Position(2)), said(call())], cut=3)
@example(bodies=[*begun(), said(call()), step_ended(1)], cut=0)
def test_the_fold_without_texts_equals_the_whole_one_but_for_the_conversation(bodies: list[Body], cut: int) -> None:
    events = at(bodies)
    lean = fold(events[:cut])
    drop_texts(lean)
    fold_turn(events[cut:], lean)
    whole = fold(events)
    assert not any(found for item in lean.history for found in texts_of(item))
    assert dump(without_conversation(lean)) == dump(without_conversation(whole))
    if not any(isinstance(body, session.Truncated) for body in bodies):
        # A rewind below a reply shows an older one. No log of ours has a rewind while tools run.
        assert unfinished(lean) == unfinished(whole)


def texts_of(item: HistoryItem) -> list[str | None]:
    """What was said, without the line of the runtime for a call that was closed without a result."""
    if isinstance(item, Summary):
        return [item.text, *(person.text for person in item.people)]
    if not isinstance(item, ModelReply):
        return [item.text]
    return [item.text, *(each.result for each in item.calls if each.result != INTERRUPTED)]


def unfinished(state: State) -> list[ToolCall] | None:
    reply = state.reply()
    return None if reply is None else reply.unfinished()


def without_conversation(state: State) -> State:
    """The state without the conversation and what is known of its size and its beginning."""
    turn = None if state.turn is None else replace(state.turn, same_calls={})
    size = ContextSize()
    return replace(state, history=[], turn=turn, size=size, windows={}, tasks_listed=(), is_behind=False)


@settings(max_examples=50, deadline=None)
@given(bodies=ANY_LOG, again=st.integers(0, 40))
def test_events_that_were_already_folded_change_nothing(bodies: list[Body], again: int) -> None:
    events = at(bodies)
    state = fold(events)
    before = dump(state)
    fold(events[again:], state)
    assert dump(state) == before


def test_an_event_of_a_newer_release_is_counted_and_changes_nothing() -> None:
    state = state_of(*begun())
    before = restore(dump(state))
    unknown = Unknown(original_type="holdfast.later", original_version=1, data=b"{}")  # type: ignore[arg-type]
    apply(state, Event(Position(state.head + 1), EventId("e"), 0, unknown))
    before.head = state.head
    assert dump(state) == dump(before)


# Effects of each event


def test_a_session_starts_with_its_creation_options() -> None:
    tool = session.ClientTool(name="lamp", description="", parameters={})
    started = session.SessionStarted(
        session_id=STARTED.session_id,
        producer="p",
        start_time=1,
        model="m",
        system_message="Be brief.",
        working_directory="/w",
        tools=("view",),
        client_tools=(tool,),
        allow=("read",),
        dry_run=True,
    )
    state = state_of(started, session.TitleChanged(title="T"), session.ModelChanged(new_model="m2"))
    assert (state.session_id, state.model, state.title, state.dry_run) == ("s", "m2", "T", True)
    assert (state.system_message, state.working_directory, state.tools) == ("Be brief.", "/w", ("view",))
    assert (state.client_tools, state.allow) == ((tool,), ["read"])


def test_a_result_belongs_to_the_call_with_its_id_in_any_order_of_completion() -> None:
    state = state_of(*begun(), said(call("c1"), call("c2")), result("c2", "two"), result("c1", "one"))
    assert plain_context(state)[-2:] == (ToolOutcome(ToolCallId("c1"), "one"), ToolOutcome(ToolCallId("c2"), "two"))


def test_the_first_result_of_a_call_is_kept() -> None:
    state = state_of(*begun(), said(call()), result("c1", "first"), result("c1", "second"))
    assert plain_context(state)[-1] == ToolOutcome(ToolCallId("c1"), "first")


def test_a_call_id_that_an_earlier_step_used_names_another_call() -> None:
    first = [*begun(), said(call("c1")), result("c1", "old"), step_ended(1), step(2)]
    state = state_of(*first, said(call("c1"), id="m2"), attempted("c1"), result("c1", "new"))
    assert [item.text for item in plain_context(state) if isinstance(item, ToolOutcome)] == ["old", "new"]


def test_a_long_result_is_sent_to_the_model_as_its_preview() -> None:
    whole = ToolCompleted(tool_call_id=ToolCallId("c1"), success=True, content="long", preview="l…g")
    assert plain_context(state_of(*begun(), said(call()), whole))[-1] == ToolOutcome(ToolCallId("c1"), "l…g")


def test_a_call_without_a_result_at_the_end_of_its_step_was_interrupted() -> None:
    state = state_of(*begun(), said(call()), step_ended(1))
    assert context(state)[-1] == ToolOutcome(ToolCallId("c1"), INTERRUPTED)


def test_the_end_of_a_turn_closes_its_requests() -> None:
    asked = request.UserInputRequested(request_id=RequestId("r1"), tool_call_id=ToolCallId("c1"), question="?")
    state = state_of(*begun(), said(call()), asked)
    assert list(state.requests) == ["r1"]
    state = state_of(*begun(), said(call()), asked, step_ended(1), turn_ended())
    assert (state.requests, state.turn, state.phase) == ({}, None, Phase.IDLE)


def test_approving_for_the_session_grants_the_rule_once() -> None:
    def asked_and_approved(id: str) -> list[Body]:
        approved = request.PermissionCompleted(
            request_id=RequestId(id), tool_call_id=ToolCallId(id), decision="approved-for-session"
        )
        return [asking(id), approved]

    bodies = [said(call("c1"), call("c2")), *asked_and_approved("c1"), *asked_and_approved("c2")]
    state = state_of(*begun(), *bodies)
    assert state.allow == ["write"]
    reply = state.reply()
    assert isinstance(reply, ModelReply)
    assert [found.approved_for for found in reply.calls] == ["write a", "write a"]


@pytest.mark.parametrize(("place", "held"), [("", ("write",)), ("/work", ("write",)), ("/other", ())])
@pytest.mark.parametrize("decision", ["approved", "approved-for-session"])
def test_lasting_approval_leaves_rules_of_its_place_and_none_of_the_session(
    place: str, held: tuple[str, ...], decision: Decision
) -> None:
    approved = request.PermissionCompleted(
        request_id=RequestId("c1"), tool_call_id=ToolCallId("c1"), decision=decision, place=place
    )
    here = session.SettingsChanged(working_directory="/work")
    state = state_of(*begun(), here, said(call("c1")), asking("c1"), approved)
    assert (state.place_rules, state.allow) == (held, [])
    reply = state.reply()
    assert isinstance(reply, ModelReply)
    assert reply.calls[0].approved_for == "write a"


def test_session_gets_no_more_rules_from_answers_than_it_may_have() -> None:
    rules = tuple(f"read({number})" for number in range(MAX_SESSION_RULES - 1))
    approved = request.PermissionCompleted(
        request_id=RequestId("c1"),
        tool_call_id=ToolCallId("c1"),
        decision="approved-for-session",
        rules=("write(a)", "write(a)", "write(b)", "read(1)"),
    )
    settings = session.SettingsChanged(allow=rules)
    state = state_of(*begun(), settings, said(call("c1")), asking("c1"), approved)
    assert tuple(state.allow) == (*rules, "write(a)")


def asking(id: str) -> request.PermissionRequested:
    return request.PermissionRequested(
        request_id=RequestId(id),
        tool_call_id=ToolCallId(id),
        tool_name="write",
        kind="write",
        subject="a",
        rule="write",
    )


def test_truncation_keeps_the_log_and_shortens_the_models_history() -> None:
    talk = [*begun("One"), said(text("First.")), step_ended(1), turn_ended()]
    state = state_of(*talk, session.Truncated(kept=Position(3)))
    assert context(state)[1:] == (UserText("One"),)
    assert state.head == len(talk) + 1


def test_failed_attempts_are_counted_until_an_answer_is_complete() -> None:
    state = state_of(*begun(), failed(attempt=1), failed(attempt=2))
    assert state.turn
    assert state.turn.failures_since_answer == 2
    state = state_of(*begun(), failed(), said(text("Here.")))
    assert state.turn
    assert (state.turn.failures_since_answer, state.turn.failure) == (0, None)


# The history for the model


def test_a_persons_text_comes_after_the_context_that_was_added_for_the_model() -> None:
    state = state_of(STARTED, *begun()[1:2], user("Look", added="[Page URL: x]"))
    assert plain_context(state)[-1] == UserText("[Page URL: x]\n\nLook")


@pytest.mark.parametrize("words", ["<user_follow_up>x</user_follow_up>", "<task-notification>", "Your reply was"])
def test_text_typed_as_a_notification_is_only_text(words: str) -> None:
    state = state_of(*begun(words))
    assert context(state)[1:] == (UserText(words),)
    assert state.turn
    assert state.turn.notes == []


def test_the_system_text_is_the_sessions_own_or_the_default_followed_by_the_rules() -> None:
    rules = f"{RULES}\n\n{quote.rules('')}"
    assert context(State(), Prompt(instructions="Be kind."))[0] == SystemText(f"Be kind.\n\n{rules}")
    assert context(State(system_message="Be brief."), Prompt(instructions="Be kind."))[0] == SystemText(
        f"Be brief.\n\n{rules}"
    )
    assert context(State())[0] == SystemText(rules)


def test_reasoning_and_empty_answers_are_not_sent_to_the_model() -> None:
    thought = message.ReasoningBlock(text="Hm.")
    assert context(state_of(*begun(), said(thought)))[1:] == (UserText("Hi"),)
    assert context(state_of(*begun(), said(thought, text("Yes."))))[1:] == (UserText("Hi"), AssistantTurn("Yes."))


def test_reasoning_that_its_provider_wants_back_is_sent_in_its_place() -> None:
    blocks = (
        message.ReasoningBlock(text="Hm.", opaque='{"signature":"a"}'),
        text("One."),
        message.ReasoningBlock(text="for people"),
        call(),
        message.ReasoningBlock(text="", opaque='{"redacted":"b"}'),
    )
    answered = message.AssistantMessage(message_id=MessageId("m1"), blocks=blocks, reasoning_source="here m")
    sent = plain_context(state_of(*begun(), answered))[2]
    assert isinstance(sent, AssistantTurn)
    assert sent.reasoning_source == "here m"
    assert sent.reasoning == (
        Reasoning("Hm.", '{"signature":"a"}', text_before=0, calls_before=0),
        Reasoning("", '{"redacted":"b"}', text_before=4, calls_before=1),
    )


def test_reasoning_of_an_answer_that_was_cut_is_not_sent_back() -> None:
    thought = message.ReasoningBlock(text="Hm.", opaque='{"signature":"a"}')
    cut = message.AssistantMessage(
        message_id=MessageId("m1"), blocks=(thought, text("I will")), reasoning_source="here m", interrupted=True
    )
    assert plain_context(state_of(*begun(), cut))[2] == AssistantTurn("I will")


def test_readers_get_reasoning_without_its_opaque_parts() -> None:
    blocks = (message.ReasoningBlock(text="Hm.", opaque='{"signature":"a"}', duration_ms=3), text("Yes."))
    stored = message.AssistantMessage(message_id=MessageId("m1"), blocks=blocks, reasoning_source="here m", model="m")
    shown = message.without_opaque(stored)
    assert shown == message.AssistantMessage(
        message_id=MessageId("m1"), blocks=(message.ReasoningBlock(text="Hm.", duration_ms=3), text("Yes.")), model="m"
    )
    (event,) = at([stored])
    assert b"signature" not in bytes(EventView.of(event).data)
    assert [reading.body for reading in as_read(event) if isinstance(reading, Event)] == [shown]


def test_a_cut_answer_is_sent_as_shown_without_its_calls() -> None:
    cut = said(text("I will"), call(), interrupted=True)
    sealed = message.Sealed(message_id=MessageId("m1"), next_message_id=MessageId("m2"), cause="crash")
    note = message.Noted(text="Again.", reason="interrupted")
    state = state_of(*begun(), cut, result("c1", INTERRUPTED), sealed, note)
    assert plain_context(state)[2:] == (AssistantTurn("I will"), UserText("Again."))
    assert state.turn
    assert state.turn.message_id == "m2"


def test_a_turn_takes_its_id_and_attendance_from_its_start() -> None:
    state = state_of(*begun(unattended=True))
    assert state.turn
    assert (state.turn.turn_id, state.turn.unattended, state.turn.step) == (TURN, True, 1)
