"""Removes the segments of messages that are no longer in flight, a few at a time, inside other writes' transactions."""

import sqlite3
from typing import Final

from holdfast.store.sqlite.queries import SQL

SWEEP_EVERY: Final = 1000
"""Segments between two sweeps."""
LOOK_CLOSER_FROM: Final = 50_000
"""If a sweep leaves this many, an old message holds up the rest: then segments are checked one by one."""
LOOK_AT: Final = 2 * SWEEP_EVERY
"""How many segments are checked at a time: more than are appended between two sweeps."""


class Sweeper:
    """Counts appended segments, and sweeps every `SWEEP_EVERY` of them."""

    def __init__(self) -> None:
        self._appended = 0
        self._looked_until = 0

    def appended(self, db: sqlite3.Connection, segments: int) -> None:
        self._appended += segments
        if self._appended >= SWEEP_EVERY:
            self._appended = 0
            self._sweep(db)

    def _sweep(self, db: sqlite3.Connection) -> None:
        db.execute(SQL["sweep"])
        first, last = db.execute(SQL["segments_left"]).fetchone()
        if last - first < LOOK_CLOSER_FROM:
            return
        start = self._looked_until if first <= self._looked_until < last else first
        self._looked_until = start + LOOK_AT
        db.execute(SQL["sweep_between"], (start, self._looked_until))
