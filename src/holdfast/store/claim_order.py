"""The order of claims. Pure, and the same for every store.

Every owner's waiting sessions form a line. Across owners, the sessions with the fewest turns of their owner before them
come first, so that a long line delays only its owner.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from holdfast.events.ids import Key

Waiting = tuple[bool, bool, int, str]
"""A session that waits to be claimed: whether it takes a slot of its owner, whether its turn is a new one, since when
it waits, and its id. Sorted like this, an owner's line begins with sub-sessions, which use their parent's slot, then
come unfinished turns, then new ones."""

Place = tuple[int, bool, int]
"""A session's place among those of all owners: how many turns of its owner are before it, whether its turn is a new
one, and since when it waits."""

Session = TypeVar("Session", bound=tuple[str, str] | Key)
"""A key of a session, in the type of the store."""


def line_up(line: Iterable[Waiting], *, taken: int, free: int) -> list[tuple[str, Place]]:
    """The sessions of one owner that may be claimed, with their places: all that need no slot, and as many others as
    the owner has free slots. `taken` is the number of the owner's slots that are taken."""
    waiting = sorted(line)
    inner = [each for each in waiting if not each[0]]
    counted = [each for each in waiting if each[0]]
    return [
        (session, (taken + before, is_new, since))
        for before, (_, is_new, since, session) in enumerate(inner + counted[: max(0, free)])
    ]


def first_of(places: Mapping[Session, Place], limit: int) -> list[Session]:
    """The first sessions of all owners."""
    return sorted(places, key=lambda session: (places[session], session))[:limit]
