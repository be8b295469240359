"""Announces commits to other processes, and listens for theirs. An announcement is a hint, and comes after the commit,
outside of its transaction: PostgreSQL commits only one notifying transaction at a time, so a synced commit would delay
all others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from holdfast.store.clock import Clock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import DatabaseAddress, Lane, PostgresConnection, read

log = logging.getLogger(__name__)

CHANNEL: Final = "holdfast"

ANNOUNCE_SECONDS: Final = 0.02
"""The shortest time between two announcements; commits in between are announced together."""
QUIET_SECONDS: Final = 0.02
"""The shortest time between two hints to one listener."""
POLL_SECONDS: Final = 0.5
"""How often `Changes` polls while it can't listen."""
LOOK_SECONDS: Final = 2.0
"""How often `Changes` polls although it listens: a process may die between its commit and the announcement, and if no
process writes any more, nothing else announces that commit."""
WANTED_SECONDS: Final = 0.05
"""How often an unwanted listener checks whether its hints are wanted again."""


class Announcer:
    """Announces commits to other processes, many commits at once."""

    def __init__(self, lane: Lane, token: str) -> None:
        self._lane = lane
        self._token = token
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="holdfast-announcer")

    def announce(self) -> None:
        self._wanted.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._wanted.is_set():
            await self._say()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._say()
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def _say(self) -> None:
        """Notify. It writes nothing, and is retried as a read is: a second notification does no harm."""
        try:
            await read(self._lane, lambda db: db.run("announce", self._token), is_one=True)
        except StoreUnavailable as error:
            log.info("others were not told of a commit: %s", error.message)


class Changes:
    """Listens for announcements of other processes; where it can't listen, it polls for commits."""

    def __init__(self, listens_at: DatabaseAddress | None, reads: Lane, clock: Clock, token: str) -> None:
        self._listens_at = listens_at
        self._reads = reads
        self._clock = clock
        self._token = token
        self._listening: asyncio.Task[None] | None = None
        self._is_listening = False
        self._is_closed = False
        self._heard: set[asyncio.Event] = set()

    async def heard(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        heard = asyncio.Event()
        self._heard.add(heard)
        self._start_listening()
        seen, looked_at = await self._latest(), self._clock.monotonic()
        try:
            while not self._is_closed:
                if not wanted():
                    await self._clock.sleep(WANTED_SECONDS)
                    continue
                await self._pause(heard)
                if not self._is_listening or self._clock.monotonic() - looked_at >= LOOK_SECONDS:
                    before, seen, looked_at = seen, await self._latest(), self._clock.monotonic()
                    if seen != before:
                        heard.set()
                if heard.is_set() and not self._is_closed:
                    heard.clear()
                    yield
                    await self._clock.sleep(QUIET_SECONDS)
        finally:
            self._heard.discard(heard)

    async def close(self) -> None:
        self._is_closed = True
        self._tell_all()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _pause(self, heard: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await heard.wait()
        except TimeoutError:
            pass

    async def _latest(self) -> int | None:
        try:
            row = await read(self._reads, lambda db: db.row("latest"), is_one=True)
        except StoreUnavailable:
            return None
        return None if row is None else int(row[0])

    def _start_listening(self) -> None:
        if self._listening is None and self._listens_at is not None:
            self._listening = asyncio.create_task(self._listen(self._listens_at), name="holdfast-listener")

    async def _listen(self, address: DatabaseAddress) -> None:
        """Listen over a connection of its own, which is opened again whenever it is lost."""
        while True:
            try:
                connection = await address.connect(patience_seconds=float("inf"))
            except Exception as error:
                log.warning("can't listen for the commits of others: %s", type(error).__name__)
                await asyncio.sleep(POLL_SECONDS)
                continue
            try:
                await self._until_lost(connection)
            except Exception as error:
                log.info("no longer listening for the commits of others: %s", type(error).__name__)
            finally:
                self._is_listening = False
                connection.terminate()

    async def _until_lost(self, connection: PostgresConnection) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(CHANNEL, self._notified)
        self._is_listening = True
        self._tell_all()  # Earlier announcements were missed.
        await lost.wait()

    def _notified(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if payload != self._token:
            self._tell_all()

    def _tell_all(self) -> None:
        for heard in self._heard:
            heard.set()
