"""Readers that follow a session, lose their connection at random or with their process and resume from their cursor."""

import asyncio
from contextlib import aclosing

from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.live.live import Delta
from holdfast.server.errors import NotFound
from holdfast.server.reader import Reader
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Cursor
from proof.simulation.machines import Fleet, Process
from proof.simulation.world import World


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
        reading = process.spawn(self._read(process, ended))
        try:
            async with asyncio.timeout(self._world.chance.uniform(0.5, 10.0)):
                await ended
        except TimeoutError:
            pass  # It goes and reads elsewhere.
        reading.cancel()
        ended.cancel()

    async def _read(self, process: Process, ended: "asyncio.Future[None]") -> None:
        reader = Reader(process.store, process.operations.live, self.key, self.cursor)
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
