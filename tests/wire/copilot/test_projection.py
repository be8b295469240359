"""The projection of a log for Copilot clients, event by event. Pure."""

from typing import Any

import pytest

from holdfast.events.event import Event
from holdfast.events.session import SessionError
from holdfast.server.copilot.projection import CopilotProjection, WireEvent
from holdfast.session.fold import fold
from holdfast.session.state import State
from holdfast.session.tool_results import UNKNOWN_OUTCOME
from tests.wire.ai_sdk.logs import (
    attempted,
    call,
    ended,
    gave,
    log,
    said,
    started,
    step,
    step_ended,
    tool_started,
    typed,
)

CALLS = ("call-1", "call-2", "call-3", "call-4")

RAN = log(
    *(started(), typed(), step(), said(*(call("add", call_id=name) for name in CALLS))),
    *(tool_started("add", name) for name in CALLS),
    *(attempted("call-1"), attempted("call-2"), attempted("call-3"), gave("3")),
)
ENDED_WITHOUT_ITS_LOG = log(
    *(step_ended(0), SessionError(error_type="poisoned", message="Given up."), ended("error")), first=len(RAN) + 1
)


def ended_calls(wires: list[WireEvent]) -> list[tuple[str, Any]]:
    found = [wire.data for wire in wires if wire.type == "tool.execution_complete"]
    return [(data["toolCallId"], data.get("error", {}).get("message")) for data in found]


@pytest.mark.parametrize("read_before", [0, 3, len(RAN)])
def test_calls_of_a_turn_ended_without_its_log_complete_before_their_step_ends(read_before: int) -> None:
    """The same holds for a client that attaches in mid-turn."""
    projection = CopilotProjection("s")
    if read_before:
        state = State()
        fold(RAN[:read_before], state)
        projection.start_from(state, RAN[read_before - 1 : read_before])
    rest: list[Event] = [*RAN[read_before:], *ENDED_WITHOUT_ITS_LOG]
    wires = [wire for event in rest for wire in projection.project(event)]
    unknown = [("call-2", UNKNOWN_OUTCOME), ("call-3", UNKNOWN_OUTCOME)]
    assert ended_calls(wires) == (unknown if read_before == len(RAN) else [("call-1", None), *unknown])
    assert [wire.type for wire in wires[-4:]] == [
        *("tool.execution_complete", "tool.execution_complete", "assistant.turn_end", "session.error"),
    ]
    assert len({wire.id for wire in wires}) == len(wires)
    assert wires[-2].id == ENDED_WITHOUT_ITS_LOG[0].id
