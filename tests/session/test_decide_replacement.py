"""A message that replaces an earlier one truncates the history in the unit that starts its own turn."""

import msgspec

from holdfast.events import message, session
from holdfast.events.ids import Position
from holdfast.events.inbox import Message
from holdfast.session.state import ModelReply, Person
from tests.session.logs import (
    STARTED,
    after,
    appended,
    begun,
    deciding,
    kinds,
    put,
    said,
    sends,
    state_of,
    step_ended,
    stops,
    text,
    turn_ended,
)

DONE = [*begun(), said(text("Well.")), step_ended(1), turn_ended()]


def instead(words: str, kept: int) -> Message:
    return msgspec.structs.replace(sends(words, enqueue=True), rewinds_to=Position(kept))


def test_a_replacement_truncates_the_history_and_starts_its_turn_in_one_unit() -> None:
    state = state_of(STARTED, *DONE)
    written = appended(state, deciding(inbox=put(instead("Other words", 1))))
    assert written.events[0] == session.Truncated(kept=Position(1))
    assert kinds(written)[1:3] == ["TurnStarted", "UserMessage"]
    assert [promoted.sequence for promoted in written.promotes] == [1]
    state = after(state, written)
    (person,) = state.history
    assert isinstance(person, Person)
    assert person.text == "Other words"


def test_a_replacement_keeps_the_history_before_the_replaced_message() -> None:
    state = state_of(STARTED, *DONE, *begun("And then"), said(text("Then.")), step_ended(1), turn_ended())
    kept = state.head - len([*begun(), said(), step_ended(1), turn_ended()])
    state = after(state, appended(state, deciding(inbox=put(instead("Instead", kept)))))
    assert [type(item) for item in state.history] == [Person, ModelReply, Person]


def test_a_replacement_never_joins_the_turn_that_it_replaces() -> None:
    state = state_of(STARTED, *begun())
    written = appended(state, deciding(inbox=put(stops(), instead("Other words", 1), while_running=True)))
    assert "UserMessage" not in kinds(written)
    assert kinds(written)[-1] == "TurnEnded"


def test_a_replacement_can_not_keep_more_events_than_exist() -> None:
    state = state_of(STARTED, *DONE)
    written = appended(state, deciding(inbox=put(instead("Other words", 1_000))))
    assert written.events[0] == session.Truncated(kept=state.head)


def test_a_plain_message_truncates_nothing() -> None:
    written = appended(state_of(STARTED, *DONE), deciding(inbox=put(sends("More"))))
    assert not any(isinstance(body, session.Truncated) for body in written.events)
    assert any(isinstance(body, message.UserMessage) for body in written.events)
