"""Trims the audit log to the days that the operator keeps. Each trim is an entry of its own."""

import logging
from typing import Final

from holdfast.store.audit import Actor, audit_entry
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Store

log = logging.getLogger(__name__)

TRIM_EVERY_SECONDS: Final = 3_600.0

DAY_MS: Final = 86_400_000


async def keep_trimmed(store: Store, clock: Clock, actor: Actor, *, days: int) -> None:
    """Trim the log now and then every hour, without end. A crash leaves the entries that were not trimmed yet, and the
    next start goes on with them."""
    while True:
        try:
            await trim(store, clock, actor, days=days)
        except StoreError as error:
            log.warning("the audit log could not be trimmed: %s", error)
        await clock.sleep(TRIM_EVERY_SECONDS)


async def trim(store: Store, clock: Clock, actor: Actor, *, days: int) -> None:
    now = clock.now_ms()
    entry = audit_entry(now, actor, "audit.trimmed", detail=f"entries that were older than {days} days")
    while await store.trim_audit(max(0, now - days * DAY_MS), audit=entry):
        pass  # There may be more than one transaction removes.
