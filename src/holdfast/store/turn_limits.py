"""How much of one owner's work is done at a time, and how much one owner keeps, so that nobody's work keeps the others
from theirs.

A *slot* is what a turn that runs takes up: a session of the owner that a process holds. A sub-session runs in the slot
of its parent for as long as that one's turn is unfinished.
"""

from typing import Final, Literal

import msgspec

from holdfast.events.ids import Owner

QuotaCode = Literal["too_many_sessions", "storage_full"]


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every owner but those who are named. None is no limit."""

    running: int | None = None
    """Slots of one owner; the next turn waits until one is free."""
    in_flight: int | None = None
    """Turns of one owner that run or wait for a slot; the next message that would start one is refused."""
    sessions: int | None = None
    """Sessions of one owner; one more is not made."""
    stored_bytes: int | None = None
    """What the logs of one owner's sessions take up; nothing more is accepted from there on."""
    unlimited: frozenset[Owner] = frozenset()

    def running_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.running

    def in_flight_of(self, owner: Owner) -> int | None:
        return None if owner in self.unlimited else self.in_flight

    def has_quota(self, owner: Owner) -> bool:
        return owner not in self.unlimited and (self.sessions is not None or self.stored_bytes is not None)

    def stores_too_much(self, has: "Stored", more: int = 1) -> bool:
        return self.stored_bytes is not None and has.stored_bytes + more > self.stored_bytes

    def refuses_session(self, has: "Stored", size: int) -> QuotaCode | None:
        """Why one more session of that many bytes is not made."""
        if self.sessions is not None and has.sessions >= self.sessions:
            return "too_many_sessions"
        return "storage_full" if self.stores_too_much(has, size) else None

    def quota_sentence(self, code: str) -> str:
        """What people are told of a refusal."""
        if code == "too_many_sessions":
            return f"You have {self.sessions:,} sessions, and may have no more. Delete one that you don't need."
        return f"Your sessions take up all of the {self.stored_bytes:,} bytes that they may. Delete one to go on."


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner has stored: sessions that are not deleted, and the bytes of their events."""

    sessions: int
    stored_bytes: int


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
