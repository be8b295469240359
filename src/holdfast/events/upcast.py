"""How the data of an old version of an event becomes that of the next. A log is never rewritten: old events are
lifted each time they are read."""

from collections.abc import Callable, Mapping
from typing import Any

Lift = Callable[[dict[str, Any]], dict[str, Any]]

LIFTS: Mapping[str, tuple[Lift, ...]] = {}
"""For each type, the functions from version 1 to 2, from 2 to 3, and so on."""


def version_of(event_type: str, lifts: Mapping[str, tuple[Lift, ...]] = LIFTS) -> int:
    """The version that this release writes."""
    return 1 + len(lifts.get(event_type, ()))


def lift(
    event_type: str,
    version: int,
    data: dict[str, Any],
    lifts: Mapping[str, tuple[Lift, ...]] = LIFTS,
) -> dict[str, Any]:
    """Bring data of an older version up to the one that this release reads."""
    for step in lifts.get(event_type, ())[version - 1 :]:
        data = step(data)
    return data
