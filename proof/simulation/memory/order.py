"""The order of claims and admission: each owner has its own queue, within its limits."""

from collections.abc import Callable
from typing import Final

from holdfast.events.ids import Owner
from holdfast.store.store import Refused
from holdfast.store.turn_limits import TurnLimits, Turns
from proof.simulation.memory.tables import Database, SessionRecord

_NO_LIMIT: Final = 1 << 62


def is_counted(db: Database, session: SessionRecord) -> bool:
    """Whether its turn takes a slot of its owner. A sub-session uses the slot of its parent's turn."""
    if session.parent is None:
        return True
    above = db.sessions.get(type(session.key)(session.key.owner, session.parent))
    return above is None or above.turn_id is None


def turns(db: Database, owner: Owner) -> Turns:
    counted = [found for found in db.of_owner(owner) if is_counted(db, found)]
    held = [found for found in counted if found.holder is not None]
    return Turns(
        running=sum(found.status != "waiting" for found in held),
        lingering=sum(found.status == "waiting" for found in held),
        queued=sum(found.is_runnable and found.holder is None for found in counted),
    )


class Order:
    """The order in which sessions are claimed, within the limits of one process."""

    def __init__(self, db: Database, limits: TurnLimits) -> None:
        self._db = db
        self._limits = limits

    def next(self, limit: int, may_run: Callable[[SessionRecord], bool]) -> list[SessionRecord]:
        """Sessions of owners with the fewest turns before them come first."""
        found: list[tuple[tuple[int, bool, int], SessionRecord]] = []
        for owner, free, slots in self._owners():
            waiting = [each for each in self._unheld(owner) if may_run(each)]
            inside = [each for each in waiting if not is_counted(self._db, each)]
            counted = sorted((each for each in waiting if is_counted(self._db, each)), key=_place)
            taken = sorted(inside, key=_place) + counted[: max(0, free)]
            for before, each in enumerate(taken):
                is_new, since, _ = _place(each)
                found.append(((slots + before, is_new, since), each))
        found.sort(key=lambda each: (each[0], each[1].key))
        return [session for _, session in found[:limit]]

    def with_slots(self) -> list[SessionRecord]:
        """Unheld sessions of owners with a free slot for them."""
        return [found for owner, free, _ in self._owners() if free > 0 for found in self._unheld(owner)]

    def end_of_line(self, owner: Owner, now: int) -> int:
        """After all others of their owner, whatever the clock says."""
        return _end_of_line(self._db, owner, now)

    def _owners(self) -> list[tuple[Owner, int, int]]:
        """Owners with waiting sessions: how many of their slots are free, and how many are taken."""
        owners = dict.fromkeys(key.owner for key, found in self._db.sessions.items() if _waits(found))
        return [(owner, *self._slots(owner)) for owner in owners]

    def _slots(self, owner: Owner) -> tuple[int, int]:
        limit = self._limits.running_of(owner)
        taken = turns(self._db, owner).slots
        return _NO_LIMIT if limit is None else limit - taken, taken

    def _unheld(self, owner: Owner) -> list[SessionRecord]:
        return [found for found in self._db.of_owner(owner) if _waits(found)]


def _end_of_line(db: Database, owner: Owner, now: int) -> int:
    line = [found for found in db.of_owner(owner) if _waits(found) and found.turn_id is None]
    return max([now, *((found.runnable_since or 0) + 1 for found in line)])


def _waits(session: SessionRecord) -> bool:
    return session.is_runnable and session.holder is None and not session.is_deleted


def _place(session: SessionRecord) -> tuple[bool, int, str]:
    return session.turn_id is None, session.runnable_since or 0, session.key.session


class Admission:
    """Whether a message may start a turn, and when. Owners without limits are not counted at all."""

    def __init__(
        self, db: Database, session: SessionRecord, limits: TurnLimits, *, stops_first: bool, now: int
    ) -> None:
        owner, counts = session.key.owner, is_counted(db, session)
        self._db = db
        self._owner = owner
        self._now = now
        self._in_flight = limits.in_flight_of(owner) if counts else None
        self._running = limits.running_of(owner) if counts else None
        is_in_flight = session.is_runnable and session.status != "waiting"
        joins = session.turn_id is not None and not stops_first
        self._starts = not is_in_flight and not joins
        self._is_in_line = is_in_flight and session.holder is None and session.turn_id is None

    def refusal(self) -> Refused | None:
        if self._in_flight is None or not self._starts:
            return None
        found = turns(self._db, self._owner)
        return Refused("too_many_turns", found.refusal()) if found.in_flight >= self._in_flight else None

    def waits_for_slot(self) -> bool:
        if self._running is None:
            return False
        found = turns(self._db, self._owner)
        if self._starts:
            return found.in_flight >= self._running
        return self._is_in_line and found.slots >= self._running

    def since(self) -> int:
        """The place of its session in the queue: after all others of its owner, whatever the clock says."""
        if self._running is None:
            return self._now
        return _end_of_line(self._db, self._owner, self._now)
