"""Known defects of budgets, for both stores. See `defects.py`."""

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.events import turn
from holdfast.events.body import Body
from holdfast.store import budget
from holdfast.store.store import LedgerEntry, Unit
from holdfast.turns.held_session import HeldSession
from holdfast.turns.reservations import Reservations
from proof.crash.plant import replace


def check_after_the_call() -> None:
    """What is reserved does not count: only what was charged does, after the calls."""
    replace(budget, "add_reserved", lambda charged, *_: charged)


def reserve_for_the_step_alone() -> None:
    """Nothing is reserved for calls that are made again."""
    replace(Reservations, "needed", lambda self, message_id, attempt: None)


def forget_the_dead() -> None:
    """The attempt of a holder that died is not charged."""

    def ledger(self: HeldSession, bodies: Iterable[Body]) -> Iterable[LedgerEntry]:
        return intact(self, [body for body in bodies if not isinstance(body, turn.Claimed)])

    intact = HeldSession._ledger
    replace(HeldSession, "_ledger", ledger)


def settle_twice() -> None:
    def unit(self: HeldSession, *given: Any) -> Unit:
        made = intact(self, *given)
        again = tuple(msgspec.structs.replace(entry, attempt=entry.attempt + 50) for entry in made.ledger)
        return msgspec.structs.replace(made, ledger=(*made.ledger, *again))

    intact = HeldSession._unit
    replace(HeldSession, "_unit", unit)
