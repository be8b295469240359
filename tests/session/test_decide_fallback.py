"""A model that can't be reached: another one is asked for the rest of the turn, once, and readers are told."""

from typing import Final

import msgspec
import pytest

from holdfast.events import message
from holdfast.events.body import Body
from holdfast.events.ids import MessageId
from holdfast.events.role import RoleBounds
from holdfast.events.session import SessionInfo
from holdfast.events.turn import FellBack
from holdfast.session.actions import CallModel
from holdfast.session.fold import fold
from holdfast.session.inputs import Inputs
from holdfast.session.model_step import UNREACHABLE, after_answer, after_answer_promotions
from holdfast.session.state import State
from tests.session.logs import (
    TURN,
    after,
    appended,
    at,
    begun,
    decided,
    deciding,
    failed,
    kinds,
    put,
    said,
    sends,
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


# People who may not choose every model

SMALL: Final = RoleBounds(models=("small/*",), default_model="small/one")
OTHER: Final = RoleBounds(models=("oth*",))
DEFAULT: Final = RoleBounds(models=(), default_model="other")


def bounded(bounds: RoleBounds | None, id: str = "u2") -> Body:
    return message.UserMessage(message_id=MessageId(id), turn_id=TURN, content="Mine.", delivery="idle", bounds=bounds)


@pytest.mark.parametrize(
    ("senders", "falls_back"),
    [
        ([None], True),
        ([OTHER], True),
        ([DEFAULT], True),
        ([SMALL], False),
        ([None, SMALL], False),
        ([SMALL, OTHER], False),
    ],
)
def test_a_turn_does_not_fall_back_to_a_model_that_one_of_its_senders_may_not_choose(
    senders: list[RoleBounds | None], falls_back: bool
) -> None:
    sent = [bounded(bounds, f"u{number}") for number, bounds in enumerate(senders, 2)]
    first, *later = begun()
    state = state_of(first, later[0], *sent, later[-1], *(failed(attempt=tried) for tried in range(1, ATTEMPTS + 1)))
    written = kinds(appended(state, with_fallback()))
    assert ("FellBack" in written) is falls_back
    assert ("SessionError" in written) is not falls_back


@pytest.mark.parametrize(("bounds", "joins"), [(SMALL, False), (OTHER, True), (None, True)])
def test_a_message_does_not_join_a_turn_that_fell_back_to_a_model_beyond_its_bounds(
    bounds: RoleBounds | None, joins: bool
) -> None:
    state = fold(at([said(text("Hi"))], after=fell_back().head), fell_back())
    assert state.turn is not None
    inputs = deciding(inbox=put(msgspec.structs.replace(sends("Go"), bounds=bounds)), fallback="other")
    following = after_answer(state, inputs, state.turn, "Hi")
    assert bool(after_answer_promotions(following, state, inputs)) is joins
