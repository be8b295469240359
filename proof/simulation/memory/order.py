"""The order of claims: each owner has its own queue, within its limits."""

from collections.abc import Callable

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store.admission import end_of_line
from holdfast.store.claim_order import Place, Waiting, first_of, line_up
from holdfast.store.turn_limits import TurnLimits, Turns
from proof.simulation.memory.tables import Database, SessionRecord


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
        places: dict[Key, Place] = {}
        for owner, free, slots in self._owners():
            line = [self._waiting(each) for each in self._unheld(owner) if may_run(each)]
            places |= {Key(owner, SessionId(id)): place for id, place in line_up(line, taken=slots, free=free)}
        return [self._db.sessions[key] for key in first_of(places, limit)]

    def _waiting(self, session: SessionRecord) -> Waiting:
        since = session.runnable_since or 0
        return is_counted(self._db, session), session.turn_id is None, since, session.key.session

    def with_slots(self) -> list[SessionRecord]:
        """Unheld sessions of owners with a free slot for them."""
        return [found for owner, free, _ in self._owners() if free > 0 for found in self._unheld(owner)]

    def end_of_line(self, owner: Owner, now: int) -> int:
        """After all others of their owner, whatever the clock says."""
        return end_of_line(last_in_line(self._db, owner), now)

    def _owners(self) -> list[tuple[Owner, int, int]]:
        """Owners with waiting sessions: how many of their slots are free, and how many are taken."""
        owners = dict.fromkeys(key.owner for key, found in self._db.sessions.items() if _waits(found))
        return [(owner, *self._slots(owner)) for owner in owners]

    def _slots(self, owner: Owner) -> tuple[int, int]:
        taken = turns(self._db, owner).slots
        return self._limits.free_slots(owner, taken), taken

    def _unheld(self, owner: Owner) -> list[SessionRecord]:
        return [found for found in self._db.of_owner(owner) if _waits(found)]


def last_in_line(db: Database, owner: Owner) -> int | None:
    """Since when the last session in the line of an owner waits; None: none waits."""
    line = [found for found in db.of_owner(owner) if _waits(found) and found.turn_id is None]
    return max((found.runnable_since or 0 for found in line), default=None)


def _waits(session: SessionRecord) -> bool:
    return session.is_runnable and session.holder is None and not session.is_deleted
