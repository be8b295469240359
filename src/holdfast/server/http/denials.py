"""Tells the audit log of attempts at what only admins may do, at a bounded rate: nobody can fill the disk with them."""

import logging
from typing import Final

from holdfast.server.http.rates import PerMinute
from holdfast.store.audit import Actor, audit_entry
from holdfast.store.clock import Clock
from holdfast.store.store import Store

log = logging.getLogger(__name__)

PER_ACTOR: Final = 10
PER_PROCESS: Final = 60
"""Denials that are told in one minute. Those beyond are counted, and the next entry says how many they were."""


class Denials:
    """One per process."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._of_actors = PerMinute(clock, most=PER_ACTOR)
        self._of_all = PerMinute(clock, most=PER_PROCESS)
        self._left_out = 0

    async def tell(self, actor: Actor, target: str) -> None:
        """Record that the actor was denied the target. It is denied also if that can't be recorded."""
        if not (self._of_actors.take(f"{actor.kind}:{actor.id}") and self._of_all.take("")):
            self._left_out += 1
            return
        detail = f"{self._left_out} denials before were not recorded, because there were many" * bool(self._left_out)
        self._left_out = 0
        entry = audit_entry(self._clock.now_ms(), actor, "admin.denied", target=target, result="denied", detail=detail)
        try:
            await self._store.audit(entry)
        except Exception:
            log.exception("A denial of %s could not be recorded", target)
