"""Readers that follow a session, lose their connection at random or with their process and resume from their cursor."""

import asyncio
from contextlib import aclosing
from typing import cast

from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.live.live import Delta, Live
from holdfast.live.local import LocalSubscription
from holdfast.server.errors import NotFound
from holdfast.server.reader import Reader
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Cursor
from proof.simulation.machines import Fleet, Process
from proof.simulation.world import World


class Hearing:
    """The hints of one process for one reader, and whether the reader waits for the next one."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._subscription: LocalSubscription | None = None

    def subscribe(self, key: Key) -> LocalSubscription:
        subscription = self._live.subscribe(key)
        assert isinstance(subscription, LocalSubscription)
        self._subscription = subscription
        return subscription

    @property
    def is_waiting(self) -> bool:
        found = self._subscription
        return found is not None and not found._hints and found._arrived is not None and not found._arrived.done()


class Follower:
    """One reader of one session, for as long as the run lasts."""

    def __init__(self, world: World, fleet: Fleet, key: Key, name: str) -> None:
        self._world = world
        self._fleet = fleet
        self.key = key
        self.name = name
        self.cursor = Cursor()
        self.readings: list[Event | Delta] = []

    async def follow(self) -> None:
        while not self._world.is_over:
            up = [process for process in self._fleet.up() if process.machine.state == "running"]
            if up:
                await self._follow_one(self._world.chance.choice(up))
            await asyncio.sleep(self._world.chance.uniform(0.01, 0.3))

    async def _follow_one(self, process: Process) -> None:
        ended: asyncio.Future[None] = self._world.loop.create_future()
        self._world.trace.add(self.name, f"reads {self.key.session} from {process.name} after {self.cursor}")
        process.when_it_ends(lambda: None if ended.done() else ended.set_result(None))
        hearing = Hearing(process.operations.live)
        reading = process.spawn(self._read(process, hearing, ended))
        try:
            async with asyncio.timeout(self._world.chance.uniform(0.5, 10.0)):
                await ended
        except TimeoutError:
            self._check_heard(process, hearing)  # Before it goes and reads elsewhere.
        reading.cancel()
        ended.cancel()

    def _check_heard(self, process: Process, hearing: Hearing) -> None:
        """A reader that waits for hints has read what its own process wrote, once no run of the session is left there:
        nothing would tell it later."""
        if not hearing.is_waiting or process.machine.state != "running" or process.runs(self.key):
            return
        position, writer = self._world.last_progress(self.key)
        if writer == process.name and self.cursor.position < position:
            text = f"{self.name} waits at {self.cursor.position} for what {writer} wrote up to {position}"
            self._world.fail("readers_are_told", text)

    async def _read(self, process: Process, hearing: Hearing, ended: "asyncio.Future[None]") -> None:
        reader = Reader(process.store, cast(Live, hearing), self.key, self.cursor)
        try:
            async with aclosing(reader.follow()) as readings:
                async for reading in readings:
                    if ended.done():
                        return  # Disconnected: no delta reaches this reader now.
                    if isinstance(reading, Event | Delta):
                        self.readings.append(reading)
                    self.cursor = reader.cursor
        except (StoreUnavailable, NotFound):
            if not ended.done():
                ended.set_result(None)
