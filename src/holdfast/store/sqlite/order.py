"""Finds the sessions that a process may claim next, in the order of `claim_order`."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.store.claim_order import Place, first_of, line_up
from holdfast.store.sqlite.queries import SQL
from holdfast.store.turn_limits import NO_LIMIT, TurnLimits

_BETWEEN: Final = "\x1f"
_NONE: Final = "\x1e"


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The claiming process: its node, tools, models and secrets decide which sessions it may run."""

    node: str
    tools: str
    without_models: str
    process: str
    secret_key: str

    def fits(self, needs: str) -> bool:
        """Whether this process may run sessions with these needs, as the index has them."""
        parts = needs.split(_BETWEEN)
        if len(parts) != 4:
            return True  # A name contains the separator. Each session is checked by itself later.
        host, model, keeper = (None if part == _NONE else part for part in parts[:3])
        return (
            host in (None, self.node)
            and set(json.loads(parts[3])) <= set(json.loads(self.tools))
            and (model is None or model not in json.loads(self.without_models))
            and keeper in (None, self.process, self.secret_key)
        )


class WaitingOwner(msgspec.Struct, frozen=True, kw_only=True):
    """An owner with sessions that have something to do and no holder."""

    owner: str
    slots: int
    """The number of taken slots."""
    free: int
    since: int
    """Since when the session that has waited longest waits."""


class Order:
    """The order in which sessions are claimed, within the limits of this process."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = (limits.running, json.dumps(sorted(limits.unlimited)))
        self._running_of = limits.running_of

    def next(self, db: sqlite3.Connection, claimant: Claimant, limit: int) -> list[tuple[str, str]]:
        """The sessions that this process may run, in claim order. Owners without such sessions cost nothing."""
        kinds = [needs for (needs,) in db.execute(SQL["kinds_waiting"])]
        fitting = [needs for needs in kinds if claimant.fits(needs)]
        if not fitting:
            return []
        owners = self._owners(db) if len(fitting) == len(kinds) else self._owners_of(db, fitting)
        found: dict[tuple[str, str], Place] = {}
        firsts: list[tuple[int, int]] = []
        for waiting in sorted(owners, key=lambda each: (each.slots, each.since)):
            if len(firsts) >= limit and sorted(firsts)[limit - 1] <= (waiting.slots, waiting.since):
                break  # All others have at least as many turns before them, or came later.
            of_owner = self._of_owner(db, waiting, claimant, limit)
            found |= {(waiting.owner, id): place for id, place in of_owner}
            firsts += [(before, since) for _, (before, _, since) in of_owner[:1]]
        return first_of(found, limit)

    def unplaced(self, db: sqlite3.Connection, *, before: int, limit: int) -> list[tuple[str, str]]:
        """Sessions that have waited since before `before` although their owner has a free slot."""
        if db.execute(SQL["is_unplaced"], (before,)).fetchone() is None:
            return []
        return db.execute(SQL["unplaced"], (self._with_slots(db), before, limit)).fetchall()

    def oldest(self, db: sqlite3.Connection) -> int | None:
        """Since when the oldest session waits for a process to run it, and not just for a slot."""
        ((since,),) = db.execute(SQL["oldest_unclaimed"], (self._with_slots(db),))
        return None if since is None else int(since)

    def _with_slots(self, db: sqlite3.Connection) -> str:
        return json.dumps([waiting.owner for waiting in self._owners(db) if waiting.free > 0])

    def _owners(self, db: sqlite3.Connection) -> list[WaitingOwner]:
        owners = [owner for (owner,) in db.execute(SQL["first_owners_waiting"]).fetchall()]
        if len(owners) == 1 and self._running_of(owners[0]) is None:
            return [WaitingOwner(owner=owners[0], slots=0, free=NO_LIMIT, since=0)]  # No other owner waits.
        return self._counted(db, db.execute(SQL["owners_waiting"], self._limits).fetchall())

    def _owners_of(self, db: sqlite3.Connection, kinds: list[str]) -> list[WaitingOwner]:
        return self._counted(db, db.execute(SQL["owners_of_kinds"], (*self._limits, json.dumps(kinds))).fetchall())

    def _counted(self, db: sqlite3.Connection, found: Sequence[tuple[Any, ...]]) -> list[WaitingOwner]:
        limit = self._limits[0]
        return [
            WaitingOwner(
                owner=owner,
                slots=_held(db, owner) if slots is None and len(found) > 1 else slots or 0,
                free=NO_LIMIT if slots is None or limit is None else limit - slots,
                since=since or 0,
            )
            for owner, slots, since in found
        ]

    def _of_owner(
        self, db: sqlite3.Connection, waiting: WaitingOwner, claimant: Claimant, limit: int
    ) -> list[tuple[str, Place]]:
        has = (claimant.node, claimant.tools, limit, claimant.without_models, claimant.process, claimant.secret_key)
        found = db.execute(SQL["claimable"], (waiting.owner, *has, waiting.free > 0)).fetchall()
        return line_up(found, taken=waiting.slots, free=waiting.free)


def _held(db: sqlite3.Connection, owner: str) -> int:
    """The number of held sessions of an owner without a limit. It matters only if other owners wait too."""
    return int(db.execute(SQL["count_held"], (owner,)).fetchone()[0])
