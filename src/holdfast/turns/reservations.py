"""The money that is reserved for the model calls of a held session: in the unit that leads to a call, so that reserving
delays nothing, or in a unit of its own before a call that is made again.

A crash leaves a reservation of an attempt that the next holder records as one of unknown cost, which settles it, or
that any process settles once nobody holds the session.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from holdfast.events import message, turn
from holdfast.events.body import Body
from holdfast.events.budget import OverBudget
from holdfast.events.ids import MessageId
from holdfast.session.state import Phase, State
from holdfast.store.budget import Ask
from holdfast.store.store import Committed, Outcome, Rejected, Unit

Price = Callable[[MessageId, int, Iterable[Body]], Ask | None]
"""What a call asks for, given its message, its attempt and the events that lead to it. None: no limit holds."""


def no_price(message_id: MessageId, attempt: int, bodies: Iterable[Body]) -> Ask | None:
    """Where no limit holds."""
    return None


class Reservations:
    """The reservation of the session's next call, or of the one under way."""

    def __init__(self) -> None:
        self.price: Price = no_price
        self.over_budget: OverBudget | None = None
        """There was no money for the call that the last unit would have led to."""
        self.most_tokens: int | None = None
        """The longest answer that the money buys."""
        self._made: Ask | None = None

    def added_to(self, unit: Unit, bodies: list[Body], state: State, phase: Phase) -> Unit:
        """The unit, with the reservation of the call that follows it at once, or without one that is not needed any
        more. `phase` is the one after the unit."""
        if phase is Phase.CALLING_MODEL:
            call = _first_attempt(bodies, state)
            asked = None if call is None else self.price(*call, bodies)
            return unit if asked is None else replace(unit, reserves=asked)
        if self._made is None or state.phase is not Phase.CALLING_MODEL:
            return unit
        attempt = (self._made.message_id, self._made.attempt)
        is_settled = attempt in [(entry.message_id, entry.attempt) for entry in unit.ledger]
        return unit if is_settled else replace(unit, releases=(attempt,))

    def needed(self, message_id: MessageId, attempt: int) -> Ask | None:
        """What is still to be reserved for a call that is about to be made."""
        asked = self.price(message_id, attempt, ())
        made = self._made
        if asked is None or made is None:
            return asked
        is_made = (made.message_id, made.attempt, made.model) == (asked.message_id, asked.attempt, asked.model)
        return None if is_made else asked

    def note(self, unit: Unit, outcome: Outcome) -> None:
        """Take the outcome of a unit."""
        match outcome:
            case Rejected(over=over):
                self.over_budget = over
            case Committed(granted=granted):
                self.over_budget = None
                if granted is not None:
                    self._made, self.most_tokens = unit.reserves, granted.tokens
                elif unit.releases:
                    self._made = None
            case _:
                pass


def _first_attempt(bodies: list[Body], state: State) -> tuple[MessageId, int] | None:
    """The call that follows a unit at once: the first of a step, one after a part of an answer was sealed, or one that
    a new holder makes again. Other attempts may wait, or be given up."""
    for body in reversed(bodies):
        match body:
            case turn.StepStarted(message_id=message_id):
                return message_id, 1
            case message.Sealed(next_message_id=message_id):
                failed = state.turn.failure if state.turn is not None else None
                return message_id, (failed.attempt if failed is not None else 0) + 1
            case turn.Claimed() if state.turn is not None:
                return state.turn.message_id, state.turn.attempts + 2
            case _:
                pass
    return None
