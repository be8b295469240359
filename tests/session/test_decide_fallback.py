"""A model that can't be reached: another one is asked for the rest of the turn, once, and readers are told."""

from typing import Final

import pytest

from holdfast.events.session import SessionInfo
from holdfast.events.turn import FellBack
from holdfast.session.actions import CallModel
from holdfast.session.fold import fold
from holdfast.session.inputs import Inputs
from holdfast.session.model_step import UNREACHABLE
from holdfast.session.state import State
from tests.session.logs import (
    after,
    appended,
    at,
    begun,
    decided,
    deciding,
    failed,
    kinds,
    said,
    state_of,
    step_ended,
    text,
    turn_ended,
)

ATTEMPTS: Final = 8
"""More than a call is made again."""


def unreachable(code: str = "model_unreachable") -> State:
    """A turn whose model call failed as often as it is made."""
    return state_of(*begun(), *(failed(attempt=attempt, code=code) for attempt in range(1, ATTEMPTS + 1)))


def with_fallback() -> Inputs:
    return deciding(fallback="other")


def fell_back() -> State:
    state = unreachable()
    return after(state, appended(state, with_fallback()))


@pytest.mark.parametrize("code", sorted(UNREACHABLE))
def test_a_model_that_can_not_be_reached_is_replaced_for_the_rest_of_the_turn(code: str) -> None:
    state = unreachable(code)
    told = appended(state, with_fallback())
    assert kinds(told) == ["FellBack", "SessionInfo"]
    first, line = told.events
    assert isinstance(first, FellBack)
    assert (first.to_model, first.error_code) == ("other", code)
    assert isinstance(line, SessionInfo)
    assert "The rest of this turn uses other." in line.message
    state = after(state, told)
    assert state.model_now() == "other"
    action = decided(state, with_fallback())
    assert isinstance(action, CallModel)
    assert (action.attempt, action.delay_seconds) == (ATTEMPTS + 1, 0)


def test_a_fall_back_that_fails_as_well_is_asked_again_and_then_ends_the_turn() -> None:
    state = fold(at([failed(attempt=ATTEMPTS + 1)], after=fell_back().head), fell_back())
    assert isinstance(decided(state, with_fallback()), CallModel)
    for attempt in range(ATTEMPTS + 2, 2 * ATTEMPTS + 1):
        fold(at([failed(attempt=attempt)], after=state.head), state)
    written = kinds(appended(state, with_fallback()))
    assert "SessionError" in written
    assert "FellBack" not in written


def test_a_turn_without_a_fall_back_ends_with_the_error() -> None:
    assert "SessionError" in kinds(appended(unreachable()))


@pytest.mark.parametrize("code", ["model_unauthorized", "model_refused", "model_garbage"])
def test_a_model_that_refuses_is_not_replaced(code: str) -> None:
    state = state_of(*begun(), failed(code=code, retryable=False))
    assert "FellBack" not in kinds(appended(state, with_fallback()))


def test_the_next_turn_asks_the_first_model_again() -> None:
    state = fell_back()
    fold(at([said(text("Hi")), step_ended(1), turn_ended()], after=state.head), state)
    assert state.model_now() is None
