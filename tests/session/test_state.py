"""The transition table: the events that are legal in each phase and, as carefully, those that are not."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS, Event
from holdfast.events.ids import EventId, Position
from holdfast.session import diagram
from holdfast.session.fold import apply
from holdfast.session.state import TRANSITIONS, IllegalTransition, Phase, State, next_phase
from tests.events.bodies import any_body, built

LEGAL: dict[Phase, dict[str, Phase]] = {
    Phase.IDLE: {"TurnStarted": Phase.BETWEEN_STEPS, "Truncated": Phase.IDLE, "TaskNotified": Phase.IDLE},
    Phase.BETWEEN_STEPS: {
        "UserMessage": Phase.BETWEEN_STEPS,
        "Noted": Phase.BETWEEN_STEPS,
        "TaskNotified": Phase.BETWEEN_STEPS,
        "StepStarted": Phase.CALLING_MODEL,
        "TurnEnded": Phase.IDLE,
        "TurnWaiting": Phase.BETWEEN_STEPS,
        "Claimed": Phase.BETWEEN_STEPS,
        "Aborted": Phase.BETWEEN_STEPS,
        "SessionError": Phase.BETWEEN_STEPS,
    },
    Phase.CALLING_MODEL: {
        "AssistantMessage": Phase.RUNNING_TOOLS,
        "CallFailed": Phase.CALLING_MODEL,
        "FellBack": Phase.CALLING_MODEL,
        "Usage": Phase.CALLING_MODEL,
        "Noted": Phase.CALLING_MODEL,
        "StepEnded": Phase.BETWEEN_STEPS,
        "TurnWaiting": Phase.CALLING_MODEL,
        "Claimed": Phase.CALLING_MODEL,
        "Aborted": Phase.CALLING_MODEL,
        "SessionError": Phase.CALLING_MODEL,
    },
    Phase.RUNNING_TOOLS: {
        "Usage": Phase.RUNNING_TOOLS,
        "Sealed": Phase.CALLING_MODEL,
        "ToolStarted": Phase.RUNNING_TOOLS,
        "ToolAttempted": Phase.RUNNING_TOOLS,
        "ToolCompleted": Phase.RUNNING_TOOLS,
        "TaskStarted": Phase.RUNNING_TOOLS,
        "PermissionRequested": Phase.RUNNING_TOOLS,
        "PermissionCompleted": Phase.RUNNING_TOOLS,
        "ExternalToolRequested": Phase.RUNNING_TOOLS,
        "ExternalToolCompleted": Phase.RUNNING_TOOLS,
        "UserInputRequested": Phase.RUNNING_TOOLS,
        "UserInputCompleted": Phase.RUNNING_TOOLS,
        "TurnWaiting": Phase.WAITING,
        "StepEnded": Phase.BETWEEN_STEPS,
        "Claimed": Phase.RUNNING_TOOLS,
        "Aborted": Phase.RUNNING_TOOLS,
        "SessionError": Phase.RUNNING_TOOLS,
    },
    Phase.WAITING: {
        "Usage": Phase.RUNNING_TOOLS,
        "ToolStarted": Phase.RUNNING_TOOLS,
        "ToolAttempted": Phase.RUNNING_TOOLS,
        "ToolCompleted": Phase.RUNNING_TOOLS,
        "TaskStarted": Phase.RUNNING_TOOLS,
        "PermissionRequested": Phase.RUNNING_TOOLS,
        "PermissionCompleted": Phase.RUNNING_TOOLS,
        "ExternalToolRequested": Phase.RUNNING_TOOLS,
        "ExternalToolCompleted": Phase.RUNNING_TOOLS,
        "UserInputRequested": Phase.RUNNING_TOOLS,
        "UserInputCompleted": Phase.RUNNING_TOOLS,
        "Aborted": Phase.RUNNING_TOOLS,
        "SessionError": Phase.RUNNING_TOOLS,
        "TurnWaiting": Phase.WAITING,
        "StepEnded": Phase.BETWEEN_STEPS,
        "Claimed": Phase.WAITING,
    },
}
"""Said here a second time, by hand: a change of the table is a change of what a session is."""

for _phase, _legal in LEGAL.items():
    _legal |= {"CompactionStarted": _phase, "CompactionEnded": _phase}  # A compaction goes on beside everything else.

PAIRS = [(phase, kind) for phase in Phase for kind in PROGRESS]
ILLEGAL = [(phase, kind) for phase, kind in PAIRS if kind.__name__ not in LEGAL[phase]]


def test_the_transition_table_matches_the_list_of_legal_events() -> None:
    assert {
        phase: {kind.__name__: target for (source, kind), target in TRANSITIONS.items() if source is phase}
        for phase in Phase
    } == LEGAL


@pytest.mark.parametrize(("phase", "kind"), [pair for pair in PAIRS if pair not in ILLEGAL])
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_a_legal_event_leads_to_its_phase(phase: Phase, kind: type[Body], data: st.DataObject) -> None:
    assert next_phase(phase, data.draw(built(kind))) is LEGAL[phase][kind.__name__]


@pytest.mark.parametrize(("phase", "kind"), ILLEGAL)
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_an_illegal_event_is_refused_before_a_write_and_tolerated_in_a_log(
    phase: Phase, kind: type[Body], data: st.DataObject
) -> None:
    body = data.draw(built(kind))
    with pytest.raises(IllegalTransition, match=phase) as refused:
        next_phase(phase, body)
    assert (refused.value.phase, refused.value.body) == (phase, body)
    state = State(phase=phase)
    apply(state, Event(Position(1), EventId("e"), 0, body))
    assert (state.phase, state.head) == (phase, 1)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_a_record_is_legal_in_every_phase_and_keeps_the_phase(
    phase: Phase, kind: type[Body], data: st.DataObject
) -> None:
    assert next_phase(phase, data.draw(built(kind))) is phase


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {Phase.IDLE}
    while found := {target for (phase, _), target in TRANSITIONS.items() if phase in reached} - reached:
        reached |= found
    assert reached == set(Phase)
    to_idle = {Phase.IDLE}
    while found := {phase for (phase, _), target in TRANSITIONS.items() if target in to_idle} - to_idle:
        to_idle |= found
    assert to_idle == set(Phase)


@settings(max_examples=50, deadline=None)
@given(bodies=st.lists(any_body(), max_size=20))
def test_only_the_start_of_a_turn_leaves_idle_and_only_its_end_returns(bodies: list[Body]) -> None:
    phase = Phase.IDLE
    for body in bodies:
        try:
            after = next_phase(phase, body)
        except IllegalTransition:
            continue
        if phase is Phase.IDLE and after is not Phase.IDLE:
            assert type(body).__name__ == "TurnStarted"
        if phase is not Phase.IDLE and after is Phase.IDLE:
            assert type(body).__name__ == "TurnEnded"
        phase = after


def test_the_diagram_shows_every_transition() -> None:
    drawn = diagram.mermaid()
    moves = {(phase, target) for (phase, _), target in TRANSITIONS.items() if phase is not target}
    assert drawn.count("-->") == len(moves) + 1
    for (phase, kind), target in TRANSITIONS.items():
        assert kind.__name__ in drawn
        if phase is not target:
            assert f"{phase.name.lower()} --> {target.name.lower()}: " in drawn


def test_the_page_is_the_one_that_the_code_prints() -> None:
    written = Path(__file__).parents[2] / "docs" / "state-machine.md"
    assert written.read_text(encoding="utf-8") == diagram.page(), (
        "run `python -m holdfast.session.diagram > docs/state-machine.md`"
    )
