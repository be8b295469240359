"""Sends this process's heartbeat. Leases are renewed separately."""

import asyncio
import logging
from typing import Final

from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import Lane, write
from holdfast.store.postgres.leases import Leases

log = logging.getLogger(__name__)

SHOW_LIFE_SECONDS: Final = 8.0
"""The time between two heartbeats. Two may fail before the process counts as dead."""


class Liveness:
    """The heartbeat task. It always waits by the machine's clock, not by the store's: the database's clock does not
    stop when a test's does."""

    def __init__(self, lane: Lane, leases: Leases) -> None:
        self._lane = lane
        self._leases = leases
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="holdfast-liveness")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def show(self) -> None:
        try:
            await write(self._lane, "show_life", self._leases.show_life, is_synced=False)
        except StoreUnavailable as error:
            log.warning("could not show that this process lives: %s", error.message)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SHOW_LIFE_SECONDS)
            await self.show()
