"""Whose turn is next. Every owner's sessions stand in a line of their own; of all owners, those with the fewest turns
before them are first, so that a long line holds up nobody but its owner."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.events.ids import Owner
from holdfast.store.postgres.connections import Link
from holdfast.store.turn_limits import TurnLimits

_NO_LIMIT: Final = 1 << 62
_LOWEST: Final = -(1 << 63)

MAX_KINDS: Final = 500
"""How many kinds of sessions one statement looks at on each host."""
MAX_OWNERS: Final = 500
"""How many owners one statement looks at, those of each kind counted."""
MAX_WAITING: Final = 200
"""How many sessions that have waited for very long one statement looks at."""
MAX_PAGES: Final = 5
"""How many such statements one look makes; with more to see, the next look begins where this one ended."""
MAX_ROUNDS: Final = 5

Kind = tuple[str, int]
"""What a session needs to be run: a host, and the number of the rest."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has that a session may need to be run."""

    node: str
    tools: list[str]
    without_models: list[str]
    keepers: list[str]

    @property
    def has(self) -> tuple[str, list[str], list[str], list[str]]:
        """As the statements take it."""
        return self.node, self.tools, self.without_models, self.keepers


class WaitingOwner(msgspec.Struct, frozen=True, kw_only=True):
    """An owner with sessions that this process may run, that nobody holds and that have something to do."""

    owner: str
    kinds: list[Kind]
    held: int
    """How much is done for them."""
    free: int
    """Slots that are not taken."""
    is_inner: bool
    """The first in line is a sub-session, which may need no slot."""
    since: int
    """When the first in line came."""

    @property
    def may_begin(self) -> bool:
        return self.free > 0 or self.is_inner


class Walk:
    """How far one kind of look has come: with more than it sees at once, the next one goes on from there."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.owner = ""


Place = tuple[int, bool, int]
"""How many turns of its owner are before a session, whether its turn is a new one, and since when it waits."""


class Order:
    """The order in which sessions are claimed, within the limits of this process.

    A look begins with the kinds of sessions that wait, then goes to the owners that have sessions of a kind that this
    process may run: owners whose sessions it can't run cost it nothing, and are never weighed against the others."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._claiming = Walk()
        self._checking = Walk()
        self._longest: tuple[int, str, str] = (_LOWEST, "", "")
        self.busy: frozenset[str] = frozenset()
        """Owners that the last look passed over, because another process was counting their turns."""

    async def next(self, db: Link, claimant: Claimant, limit: int) -> list[tuple[str, str]]:
        """The sessions that this process may run, the first first. They are locked, and nobody else counts the turns of
        their owners until this transaction ends. Nothing is waited for."""
        ready = await self._ready(db, claimant, self._claiming, wanted=limit)
        ready.sort(key=lambda each: (each.held, each.since))
        self.busy = frozenset()
        found: dict[tuple[str, str], Place] = {}
        at_once = limit
        while ready and len(found) < limit:
            owners, ready = await self._counted_alone(db, ready, at_once)
            found |= await self._firsts(db, owners, claimant, limit)
            at_once *= 2  # Those had nothing, or too little: all that they have is locked, or needs a slot after all.
        return sorted(found, key=lambda key: (found[key], key))[:limit]

    async def has_next(self, db: Link, claimant: Claimant) -> bool:
        """Whether an owner has both a session that this process may run and a slot for it."""
        return bool(await self._ready(db, claimant, self._checking, wanted=1))

    async def unplaced(self, db: Link, claimant: Claimant, *, before: int, limit: int) -> list[tuple[str, str]]:
        """Sessions that no process has run since then, though there was a slot for them, and that this one can't run.
        They are locked."""
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
        """Since when a session waits for a process to run it, and not just for a slot."""
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
        """Owners with something that may begin claimant: as many as are wanted, if the next ones have them; or all."""
        kinds = await self._kinds(db, claimant, walk)
        if not kinds:
            return []
        given = ([host for host, _ in kinds], [needs for _, needs in kinds], -(-MAX_OWNERS // len(kinds)))
        found: dict[str, WaitingOwner] = {}
        for _ in range(MAX_PAGES):
            began = walk.owner
            rows = await db.rows("owners_waiting", given[0], given[1], began, given[2])
            looked = [self._waiting(row, kinds) for row in rows]
            found |= {each.owner: each for each in looked if each.may_begin}
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
        """The first of them, as many as are wanted, their slots counted again once nobody else can take one; and those
        behind them. An owner whom another process is just counting is passed over: it may be frozen."""
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
        limit = self._limit(owner)
        return _NO_LIMIT if limit is None else limit - slots

    def _limit(self, owner: str) -> int | None:
        return self._limits.running_of(Owner(owner))

    # Sessions

    async def _firsts(
        self, db: Link, owners: Sequence[WaitingOwner], claimant: Claimant, limit: int
    ) -> dict[tuple[str, str], Place]:
        """The first in the lines of these owners: enough to fill the places, if they have that many."""
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
        asked = [(each.owner, host, needs, each.free > 0) for each in owners for host, needs in each.kinds]
        given = [list(column) for column in zip(*asked, strict=True)]
        lines: dict[str, list[tuple[Any, ...]]] = {each.owner: [] for each in owners}
        for owner, *row in await db.rows("claimable", *claimant.has, *given, of_each):
            lines[owner].append(tuple(row))
        return [
            ((each.owner, id), (each.held + before, is_new, since))
            for each in owners
            for before, (_, is_new, since, id) in enumerate(sorted(_within(lines[each.owner], each.free)))
        ]


def _with_free(waiting: WaitingOwner, free: int) -> WaitingOwner:
    return msgspec.structs.replace(waiting, free=free)


def _within(found: Sequence[tuple[Any, ...]], free: int) -> list[tuple[Any, ...]]:
    """As many as there are free slots, the unfinished turns first, and all that need none."""
    counted = sorted(row for row in found if row[0])
    return [row for row in found if not row[0]] + counted[: max(0, free)]
