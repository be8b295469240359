"""Keeps the right of this process to its leases: says that it lives, and notices when it can't.

Trust is counted from when a renewal was *sent*, less a margin: a process that can't renew stops before another may
start. Fences make late writes harmless anyway; this keeps side effects from overlapping.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.events.ids import Key
from holdfast.store.clock import Clock
from holdfast.store.store import Store
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
"""How long the deadline may go unlooked at: timers stand still while a machine sleeps, the deadline does not."""


class LeaseKeeper:
    """Renews for the whole process, and listens to the inboxes of all that it holds with one query."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        ttl_seconds: float,
        renew_every_seconds: float,
        margin_seconds: float,
        listen_every_seconds: float,
        on_lost: Callable[[Key | None], None],
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

    def trusted(self) -> bool:
        """Whether this process may take more on: nobody else can have been given what it holds."""
        return self._clock.monotonic() < self._trusted_until

    async def renew(self) -> bool:
        """Say once that this process lives. What it holds stays its own until ttl less the margin after the call."""
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
        """Renew, watch and listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renewing())
            tasks.create_task(self._watching())
            tasks.create_task(self._listening())

    async def _renewing(self) -> None:
        while True:
            await self._clock.sleep(self._renew_every)
            await self.renew()

    async def _watching(self) -> None:
        """The deadline is watched apart from the renewal, which may itself be stuck."""
        while True:
            remaining = self._trusted_until - self._clock.monotonic()
            if remaining <= 0:
                self._lose_all("this process could not renew in time")
                remaining = self._renew_every
            await self._clock.sleep(min(remaining, WATCH_SECONDS))

    async def _listening(self) -> None:
        while True:
            await self._clock.sleep(self._listen_every)
            if self.sessions:
                await self.listen()

    async def listen(self) -> None:
        """Hear what was put into the held sessions, and which of them are no longer held."""
        asked = {key: session for key, session in self.sessions.items() if session.is_claimed}
        try:
            tails = await self._store.tails(list(asked))
        except Exception as error:
            log.warning("could not listen: %s", error)
            return
        for key, session in asked.items():
            if self.sessions.get(key) is not session:
                continue  # Let go of, or claimed anew, while the store was asked.
            found = tails.get(key)
            if found is not None and found[0] == session.lease.fence:
                session.heard_tail(found[1])
            else:
                del self.sessions[key]
                self._on_lost(key)

    def _lose_all(self, why: str) -> None:
        """Also what is only being loaded so far, which `sessions` does not have yet."""
        if self.sessions:
            log.warning("%s: %d sessions are let go of", why, len(self.sessions))
        self._on_lost(None)
