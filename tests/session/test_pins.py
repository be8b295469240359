"""Pinned messages: few, short together, and a message that is pinned already takes no more room."""

from holdfast.events.ids import MessageId, Position
from holdfast.session.bounds import Bounds
from holdfast.session.fold import MAX_PINNED
from holdfast.session.pins import refusal_of_pin
from holdfast.session.state import Person, State

BOUNDS = Bounds(max_pinned_tokens=100)


def person(number: int, text: str = "Hello.") -> Person:
    return Person(Position(number), text, message_id=MessageId(f"m{number}"))


def test_a_message_may_be_pinned_until_there_are_too_many() -> None:
    state = State(pinned=tuple(MessageId(f"other{number}") for number in range(MAX_PINNED - 1)))
    assert refusal_of_pin(state, person(1), BOUNDS) is None
    full = State(pinned=(*state.pinned, MessageId("last")))
    refused = refusal_of_pin(full, person(1), BOUNDS)
    assert refused is not None
    assert refused.code == "too_many_pins"
    assert refusal_of_pin(full, Person(Position(1), "Hello.", message_id=MessageId("last")), BOUNDS) is None


def test_pinned_messages_together_have_a_bounded_size() -> None:
    state = State(history=[person(1, "x" * 200), person(2, "y" * 200)], pinned=(MessageId("m1"),))
    refused = refusal_of_pin(state, person(2, "y" * 200), BOUNDS)
    assert refused is not None
    assert (refused.code, "100 tokens" in refused.message) == ("pins_too_long", True)
    assert refusal_of_pin(state, person(1, "x" * 200), BOUNDS) is None
    assert refusal_of_pin(state, person(2, "short"), BOUNDS) is None
