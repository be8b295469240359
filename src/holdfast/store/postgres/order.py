"""Whose turn is next. Every owner's sessions stand in a line of their own; of all owners, those with the fewest turns
before them are first, so that a long line holds up nobody but its owner."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.store.postgres.connections import Link
from holdfast.store.turn_limits import TurnLimits

_NO_LIMIT: Final = 1 << 62

MAX_OWNERS: Final = 500
"""How many owners one look goes through; with more, the next one begins where it left off."""
MIN_OF_EACH: Final = 8
"""How many sessions of each owner are looked at, at the least."""
MAX_ROUNDS: Final = 5


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has that a session may need to be run."""

    node: str
    tools: list[str]
    without_models: list[str]
    keepers: list[str]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An owner with sessions that nobody holds and that have something to do."""

    owner: str
    held: int
    """How much is done for them."""
    free: int
    """Slots that are not taken."""
    since: int
    """When the one came that has waited longest."""


Place = tuple[int, bool, int]
"""How many turns of its owner are before a session, whether its turn is a new one, and since when it waits."""


class Order:
    """The order in which sessions are claimed, within the limits of this process."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._after = ""

    async def next(self, db: Link, here: Here, limit: int) -> list[tuple[str, str]]:
        """The sessions that this process may run, the first first. They are locked, and nobody else counts the turns of
        their owners until this transaction ends."""
        owners = sorted(await self._owners(db), key=lambda each: (each.held, each.since))[:limit]
        owners = await self._counted_alone(db, owners)
        found: dict[tuple[str, str], Place] = {}
        of_each = max(MIN_OF_EACH, -(-limit // max(len(owners), 1)))
        for _ in range(MAX_ROUNDS if owners else 0):
            looked = await self._of_owners(db, owners, here, of_each)
            found = dict(looked)
            if len(found) >= limit or of_each >= limit:
                break
            of_each = min(limit, of_each * 4)
        return sorted(found, key=lambda key: (found[key], key))[:limit]

    async def unplaced(self, db: Link, *, before: int, limit: int) -> list[tuple[str, str]]:
        """Sessions that nobody has run since then, though there was a slot for them."""
        owners = [waiting.owner for waiting in await self._owners(db) if waiting.free > 0 and waiting.since <= before]
        if not owners:
            return []
        return [(owner, id) for owner, id in await db.rows("unplaced", owners, before, limit)]

    async def oldest(self, db: Link) -> int | None:
        """Since when a session waits for a process to run it, and not just for a slot."""
        if self._limits.running is None:
            ((since,),) = await db.rows("oldest_unclaimed")
            return None if since is None else int(since)
        return min([each.since for each in await self._owners(db) if each.free > 0], default=None)

    async def _owners(self, db: Link) -> list[Waiting]:
        """All that have something waiting or, of very many, the next ones."""
        found = await db.rows("owners_waiting", self._after, MAX_OWNERS)
        if self._after and len(found) < MAX_OWNERS:
            seen = {row[0] for row in found}
            more = await db.rows("owners_waiting", "", MAX_OWNERS - len(found))
            found += [row for row in more if row[0] not in seen]
        self._after = str(found[-1][0]) if len(found) >= MAX_OWNERS else ""
        return [
            Waiting(owner=owner, held=held, free=self._free(owner, slots), since=since)
            for owner, held, slots, since in found
        ]

    async def _counted_alone(self, db: Link, owners: list[Waiting]) -> list[Waiting]:
        """Count the slots again of those who have a limit, once nobody else can take one."""
        limited = sorted(each.owner for each in owners if self._limits.running_of(each.owner) is not None)  # type: ignore[arg-type]
        if not limited:
            return owners
        await db.rows("lock_owners", limited)
        slots = dict(await db.rows("slots_of", limited))
        return [msgspec.structs.replace(each, free=self._free(each.owner, slots.get(each.owner, 0))) for each in owners]

    def _free(self, owner: str, slots: int) -> int:
        limit = self._limits.running_of(owner)  # type: ignore[arg-type]
        return _NO_LIMIT if limit is None else limit - slots

    async def _of_owners(
        self, db: Link, owners: Sequence[Waiting], here: Here, of_each: int
    ) -> list[tuple[tuple[str, str], Place]]:
        given = ([each.owner for each in owners], [each.free > 0 for each in owners])
        has = (here.node, here.tools, here.without_models, here.keepers)
        lines: dict[str, list[tuple[Any, ...]]] = {each.owner: [] for each in owners}
        for owner, *row in await db.rows("claimable", *given, *has, of_each):
            lines[owner].append(tuple(row))
        return [
            ((each.owner, id), (each.held + before, is_new, since))
            for each in owners
            for before, (_, is_new, since, id) in enumerate(sorted(_within(lines[each.owner], each.free)))
        ]


def _within(found: Sequence[tuple[Any, ...]], free: int) -> list[tuple[Any, ...]]:
    """As many as there are free slots, the unfinished turns first, and all that need none."""
    counted = sorted(row for row in found if row[0])
    return [row for row in found if not row[0]] + counted[: max(0, free)]
