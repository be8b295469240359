"""Finds the sessions that a process may claim next, in the order of `claim_order`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.store.claim_order import Place, Waiting, first_of, line_up
from holdfast.store.postgres.connections import Link
from holdfast.store.turn_limits import TurnLimits

_LOWEST: Final = -(1 << 63)

MAX_KINDS: Final = 500
"""How many kinds of sessions one statement checks on each host."""
MAX_OWNERS: Final = 500
"""How many owners one statement checks, over all kinds together."""
MAX_WAITING: Final = 200
"""How many sessions that have waited very long one statement checks."""
MAX_PAGES: Final = 5
"""How many such statements one look runs; if there is more, the next look starts where this one ended."""
MAX_ROUNDS: Final = 5

Kind = tuple[str, int]
"""The needs of a session: a host, and the number of its other needs."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The claiming process: its node, tools, models and secrets decide which sessions it may run."""

    node: str
    tools: list[str]
    without_models: list[str]
    keepers: list[str]

    @property
    def has(self) -> tuple[str, list[str], list[str], list[str]]:
        """The fields as parameters of the statements."""
        return self.node, self.tools, self.without_models, self.keepers


class WaitingOwner(msgspec.Struct, frozen=True, kw_only=True):
    """An owner with sessions that this process may run, and that have something to do and no holder."""

    owner: str
    kinds: list[Kind]
    held: int
    """The number of the owner's held sessions."""
    free: int
    """The number of free slots."""
    is_inner: bool
    """The first in line is a sub-session, which may need no slot."""
    since: int
    """Since when the first in line waits."""

    @property
    def may_begin(self) -> bool:
        return self.free > 0 or self.is_inner


class Walk:
    """How far one kind of look has come: if there is more than one look checks, the next look goes on from there."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.owner = ""


class Order:
    """The order in which sessions are claimed, within the limits of this process.

    A look starts with the kinds of sessions that wait, then goes to the owners that have sessions of a kind that this
    process may run: owners whose sessions it can't run cost nothing, and are never compared with the others."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._claiming = Walk()
        self._checking = Walk()
        self._longest: tuple[int, str, str] = (_LOWEST, "", "")
        self.busy: frozenset[str] = frozenset()
        """Owners that the last look skipped, because another process was counting their turns."""

    async def next(self, db: Link, claimant: Claimant, limit: int) -> list[tuple[str, str]]:
        """The sessions that this process may run, in claim order. They are locked, and no other process counts the
        turns of their owners until this transaction ends. This waits for no lock."""
        ready = await self._ready(db, claimant, self._claiming, wanted=limit)
        ready.sort(key=lambda each: (each.held, each.since))
        self.busy = frozenset()
        found: dict[tuple[str, str], Place] = {}
        at_once = limit
        while ready and len(found) < limit:
            owners, ready = await self._counted_alone(db, ready, at_once)
            found |= await self._firsts(db, owners, claimant, limit)
            at_once *= 2  # Those had too little: their sessions are locked, or need a slot after all.
        return first_of(found, limit)

    async def has_next(self, db: Link, claimant: Claimant) -> bool:
        """Whether an owner has both a session that this process may run and a slot for it."""
        return bool(await self._ready(db, claimant, self._checking, wanted=1))

    async def unplaced(self, db: Link, claimant: Claimant, *, before: int, limit: int) -> list[tuple[str, str]]:
        """Sessions that have waited since before `before` although their owner has a free slot, and that this process
        can't run. They are locked."""
        found: list[tuple[str, str]] = []
        for _ in range(MAX_PAGES):
            began = self._longest
            rows = await db.rows("unplaced", *claimant.has, before, *began, MAX_WAITING)
            found += [(owner, id) for _, owner, id, fits in rows if not fits]
            is_cut = len(rows) == MAX_WAITING
            self._longest = (rows[-1][0], rows[-1][1], rows[-1][2]) if is_cut else (_LOWEST, "", "")
            if len(found) >= limit or (began[0] == _LOWEST and not is_cut):
                break
        found = (await self._with_slots(db, list(dict.fromkeys(found))))[:limit]
        if not found:
            return []
        keys = ([owner for owner, _ in found], [id for _, id in found])
        return [(owner, id) for owner, id in await db.rows("lock_waiting", *keys)]

    async def oldest(self, db: Link) -> int | None:
        """Since when the oldest session waits for a process to run it, and not just for a slot."""
        if self._limits.running is None:
            ((since,),) = await db.rows("oldest_unclaimed")
            return None if since is None else int(since)
        after, found = "", []
        while rows := await db.rows("longest_waiting", after, MAX_OWNERS):
            found += [since for owner, slots, since in rows if self._free(owner, slots) > 0]
            after = str(rows[-1][0])
        return min(found, default=None)

    # Owners

    async def _ready(self, db: Link, claimant: Claimant, walk: Walk, *, wanted: int) -> list[WaitingOwner]:
        """Owners with a session that may begin in this process: `wanted` of them, if the pages of this look have that
        many; or all."""
        kinds = await self._kinds(db, claimant, walk)
        if not kinds:
            return []
        hosts, needs, limit = [host for host, _ in kinds], [needs for _, needs in kinds], -(-MAX_OWNERS // len(kinds))
        found: dict[str, WaitingOwner] = {}
        for _ in range(MAX_PAGES):
            began = walk.owner
            rows = await db.rows("owners_waiting", hosts, needs, began, limit)
            waiting = [self._waiting(row, kinds) for row in rows]
            found |= {each.owner: each for each in waiting if each.may_begin}
            walk.owner = min((owner for owner, _, is_cut, *_ in rows if is_cut), default="")
            if len(found) >= wanted or (not began and not walk.owner):
                break
        return list(found.values())

    async def _kinds(self, db: Link, claimant: Claimant, walk: Walk) -> list[Kind]:
        """The kinds of sessions that wait and that this process may run."""
        hosts = list(dict.fromkeys(("", claimant.node)))
        found: dict[Kind, None] = {}
        for _ in range(MAX_PAGES):
            began = walk.kinds
            after = [began.get(host, _LOWEST) for host in hosts]
            rows = await db.rows("kinds_waiting", *claimant.has, hosts, after, MAX_KINDS)
            found |= {(host, needs): None for host, needs, fits in rows if fits}
            of_host = {host: [needs for at, needs, _ in rows if at == host] for host in hosts}
            walk.kinds = {host: max(seen) for host, seen in of_host.items() if len(seen) == MAX_KINDS}
            if found or (not began and not walk.kinds):
                break
        return list(found)

    def _waiting(self, row: Sequence[Any], kinds: list[Kind]) -> WaitingOwner:
        owner, places, _, since, is_inner, held, slots = row
        return WaitingOwner(
            owner=owner,
            kinds=[kinds[place - 1] for place in places],
            held=held,
            free=self._free(owner, slots),
            is_inner=is_inner,
            since=since,
        )

    async def _counted_alone(
        self, db: Link, ready: list[WaitingOwner], wanted: int
    ) -> tuple[list[WaitingOwner], list[WaitingOwner]]:
        """The first `wanted` of the owners, their slots counted again once no other process can take one; and the
        owners after them. An owner whose turns another process is counting right now is skipped: that process may be
        frozen."""
        chosen: list[WaitingOwner] = []
        while ready and len(chosen) < wanted:
            some, ready = ready[: wanted - len(chosen)], ready[wanted - len(chosen) :]
            limited = sorted(each.owner for each in some if self._limit(each.owner) is not None)
            locked = [owner for (owner,) in await db.rows("try_lock_owners", limited)] if limited else []
            slots = dict(await db.rows("slots_of", locked)) if locked else {}
            self.busy |= set(limited) - set(locked)
            counted = [each for each in some if each.owner not in self.busy]
            counted = [_with_free(each, self._free(each.owner, slots.get(each.owner, 0))) for each in counted]
            chosen += [each for each in counted if each.may_begin]
        return chosen, ready

    async def _with_slots(self, db: Link, keys: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if not keys or self._limits.running is None:
            return keys
        slots = dict(await db.rows("slots_of", list(dict.fromkeys(owner for owner, _ in keys))))
        return [(owner, id) for owner, id in keys if self._free(owner, slots[owner]) > 0]

    def _free(self, owner: str, slots: int) -> int:
        return self._limits.free_slots(Owner(owner), slots)

    def _limit(self, owner: str) -> int | None:
        return self._limits.running_of(Owner(owner))

    # Sessions

    async def _firsts(
        self, db: Link, owners: Sequence[WaitingOwner], claimant: Claimant, limit: int
    ) -> dict[tuple[str, str], Place]:
        """The first sessions in the lines of these owners: `limit` of them, if they have that many."""
        found: dict[tuple[str, str], Place] = {}
        of_each = -(-limit // max(len(owners), 1))
        for _ in range(MAX_ROUNDS if owners else 0):
            found = dict(await self._of_owners(db, owners, claimant, of_each))
            if len(found) >= limit or of_each >= limit:
                break
            of_each = min(limit, of_each * 4)
        return found

    async def _of_owners(
        self, db: Link, owners: Sequence[WaitingOwner], claimant: Claimant, of_each: int
    ) -> list[tuple[tuple[str, str], Place]]:
        lookups = [(each.owner, host, needs, each.free > 0) for each in owners for host, needs in each.kinds]
        columns = [list(column) for column in zip(*lookups, strict=True)]
        lines: dict[str, list[Waiting]] = {each.owner: [] for each in owners}
        for owner, is_counted, is_new, since, id in await db.rows("claimable", *claimant.has, *columns, of_each):
            lines[owner].append((is_counted, is_new, since, id))
        return [
            ((each.owner, id), place)
            for each in owners
            for id, place in line_up(lines[each.owner], taken=each.held, free=each.free)
        ]


def _with_free(waiting: WaitingOwner, free: int) -> WaitingOwner:
    return msgspec.structs.replace(waiting, free=free)
