"""How much of one owner's work is done at a time, so that nobody's work keeps the others from theirs.

A *slot* is what a turn that runs takes up: a session of the owner that a process holds. A sub-session runs in the slot
of its parent for as long as that one's turn is unfinished.
"""

from typing import Final

import msgspec

from holdfast.events.ids import Owner


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every owner but those who are named. None is no limit."""

    running: int | None = None
    """Slots of one owner; the next turn waits until one is free."""
    in_flight: int | None = None
    """Turns of one owner that run or wait for a slot; the next message that would start one is refused."""
    unlimited: frozenset[Owner] = frozenset()

    def running_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.running

    def in_flight_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.in_flight


NO_LIMITS: Final = TurnLimits()


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one owner that are in flight. Those of sub-sessions are in their parents' slots, and not counted."""

    running: int
    """Held, and not waiting for anybody."""
    lingering: int
    """Held, though they wait for somebody: they will be let go of in a moment, but have their slot still."""
    queued: int
    """Not held, and with something to do."""

    @property
    def in_flight(self) -> int:
        return self.running + self.queued

    @property
    def slots(self) -> int:
        """How many slots are taken."""
        return self.running + self.lingering

    def refusal(self) -> str:
        """What the sender of one too many is told."""
        return f"{self.in_flight} turns run or wait already. Send it again when one of them has ended."
