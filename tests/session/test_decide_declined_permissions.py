"""A permission is denied once every present client that could decide it has declined, and not before."""

from typing import Any

import pytest

from holdfast.events import request, turn
from holdfast.events.ids import Fence, RequestId, ToolCallId
from holdfast.events.inbox import PermissionAnswer
from holdfast.session.actions import Action, Append, Deny, Interrupt, Release
from holdfast.session.state import State
from tests.session.logs import ASKS, TURN, answers, begun, call, decided, deciding, kinds, put, said, state_of, stops

R1, C1 = RequestId("r1"), ToolCallId("c1")
PERMISSION = request.PermissionRequested(
    request_id=R1, tool_call_id=C1, tool_name="write", kind="write", subject="a.txt", rule="write"
)
QUESTION = request.UserInputRequested(request_id=R1, tool_call_id=C1, question="Which?")
DECLINED, UNDECIDED = frozenset({R1}), frozenset[RequestId]()


def waiting(asked: request.PermissionRequested | request.UserInputRequested = PERMISSION) -> State:
    is_waiting = turn.TurnWaiting(turn_id=TURN, reason="requests", request_ids=(R1,))
    return state_of(*begun(), said(call()), asked, is_waiting)


def with_deciders(*deciders: frozenset[RequestId], state: State | None = None, **more: Any) -> Action:
    return decided(state or waiting(), deciding(deciders=deciders, facts={"c1": ASKS}, **more))


def test_a_permission_that_every_client_declined_is_denied() -> None:
    assert with_deciders(DECLINED) == Deny((R1,))
    assert with_deciders(DECLINED, frozenset({R1, RequestId("r2")})) == Deny((R1,))


@pytest.mark.parametrize("deciders", [(), (UNDECIDED,), (DECLINED, UNDECIDED), (frozenset({RequestId("r2")}),)])
def test_a_permission_waits_while_a_client_may_still_decide_it_or_no_client_is_present(
    deciders: tuple[frozenset[RequestId], ...],
) -> None:
    assert with_deciders(*deciders) == Release()


def test_only_permissions_are_denied() -> None:
    assert with_deciders(DECLINED, state=waiting(QUESTION)) == Release()


def test_a_denial_is_put_once() -> None:
    assert with_deciders(DECLINED, denying=frozenset({R1})) == Release()


def test_an_accepted_answer_takes_precedence_over_a_denial() -> None:
    inbox = put(answers(PermissionAnswer(decision="approved")))
    written = with_deciders(DECLINED, inbox=inbox)
    assert isinstance(written, Append)
    assert kinds(written) == ["PermissionCompleted"]


def test_a_stop_takes_precedence_over_a_denial() -> None:
    action = with_deciders(DECLINED, inbox=put(stops()))
    assert isinstance(action, (Append, Interrupt))


def test_a_new_holder_records_its_takeover_before_a_denial() -> None:
    action = with_deciders(DECLINED, takeover=(Fence(2), "node"))
    assert isinstance(action, Append)
    assert kinds(action) == ["Claimed"]
