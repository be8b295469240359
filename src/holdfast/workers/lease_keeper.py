"""Renews the leases of this process, and gives them up in time when it can't renew.

The process trusts its leases for the TTL less a margin, counted from when it *sent* the last renewal, so that a process
that can't renew stops before another may start. Fences make late writes harmless anyway; this keeps side effects from
overlapping.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.events.ids import Key
from holdfast.store.clock import Clock
from holdfast.store.store import Lease, Store
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
"""Maximum time between checks of the deadline: timers stand still while a machine sleeps, the deadline does not."""


class LeaseKeeper:
    """Renews the leases of the whole process, and polls the inboxes of all sessions that it holds with one query."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        ttl_seconds: float,
        renew_every_seconds: float,
        margin_seconds: float,
        listen_every_seconds: float,
        on_lost: Callable[[Lease | None], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._ttl = ttl_seconds
        self._renew_every = renew_every_seconds
        self._margin = margin_seconds
        self._listen_every = listen_every_seconds
        self._on_lost = on_lost
        self._trusted_until = 0.0
        self.sessions: dict[Key, HeldSession] = {}
        """The sessions that this process holds and has loaded. The worker adds and removes them."""

    def trusted(self) -> bool:
        """Whether this process may claim more: no other process can have been given its sessions yet."""
        return self.seconds_left() > 0

    def seconds_left(self) -> float:
        """For how long this process may trust its leases if no renewal succeeds; not positive if it may not."""
        return self._trusted_until - self._clock.monotonic()

    async def renew(self) -> bool:
        """Renew once. Success keeps the leases of this process for the TTL, less the margin, from the start of the
        call."""
        sent = self._clock.monotonic()
        try:
            alive = await self._store.renew(ttl_seconds=self._ttl)
        except Exception as error:
            log.warning("could not renew: %s", error)
            return False
        if alive:
            self._trusted_until = sent + self._ttl - self._margin
        else:
            self._lose_all("another process declared this one dead")
        return alive

    async def run(self) -> None:
        """Renew the leases, watch their deadline and poll the inboxes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew_loop())
            tasks.create_task(self._watch_deadline())
            tasks.create_task(self._listen_loop())

    async def _renew_loop(self) -> None:
        while True:
            await self._clock.sleep(self._renew_every)
            await self.renew()

    async def _watch_deadline(self) -> None:
        """Give up all sessions at the deadline. This runs apart from the renewal, which may itself be stuck."""
        while True:
            remaining = self.seconds_left()
            if remaining <= 0:
                self._lose_all("this process could not renew in time")
                remaining = self._renew_every
            await self._clock.sleep(min(remaining, WATCH_SECONDS))

    async def _listen_loop(self) -> None:
        while True:
            await self._clock.sleep(self._listen_every)
            if self.sessions:
                await self.listen()

    async def listen(self) -> None:
        """Poll the inbox tails of the held sessions, and report each session that this process no longer holds."""
        claimed = {key: session for key, session in self.sessions.items() if session.is_claimed}
        try:
            tails = await self._store.tails(list(claimed))
        except Exception as error:
            log.warning("could not listen: %s", error)
            return
        for key, session in claimed.items():
            if self.sessions.get(key) is not session:
                continue  # Released, or claimed again, while the query ran.
            row = tails.get(key)
            if row is not None and row[0] == session.lease.fence:
                session.note_tail(row[1])
            else:
                del self.sessions[key]
                self._on_lost(session.lease)

    def _lose_all(self, why: str) -> None:
        """Report that every lease is lost, also those of sessions that are still loading and not yet in `sessions`."""
        if self.sessions:
            log.warning("%s: %d sessions are let go of", why, len(self.sessions))
        self._on_lost(None)
