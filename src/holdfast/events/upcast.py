"""Upcasts the data of old event versions. A log is never rewritten: old events are upcast at every read."""

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
    """Upcast data of an older version to the version that this release reads."""
    for step in lifts.get(event_type, ())[version - 1 :]:
        data = step(data)
    return data
