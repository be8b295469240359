"""Guests: clients that are attached to a session through one process, bring a tool of their own, and can decide its
permissions or decline to. They leave, come back elsewhere, and are gone with their process."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.events.ids import Key, RequestId
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.server.errors import OperationError
from holdfast.server.presence import Arrival
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import State
from holdfast.store.errors import StoreUnavailable
from proof.simulation.machines import Fleet, Process
from proof.simulation.world import World

LOOKS_SECONDS = 0.4
"""How often a guest looks for something to decide."""


class Guest:
    """One of them, at one session for as long as the run lasts."""

    def __init__(self, world: World, fleet: Fleet, key: Key, name: str) -> None:
        self._world = world
        self._fleet = fleet
        self.key = key
        self.name = name
        self.tool = ClientTool(name=f"fetch_{name}", description="The guest fetches something.", parameters={})
        self._stays = 0
        self._is_declining = world.chance.random() < 0.6
        self._at: Process | None = None
        """The process that it talks to."""
        self.process: Process | None = None
        """The process that confirmed its attachment."""
        self.attachment_id = ""
        self.declined: dict[RequestId, float] = {}
        """The requests that it declined to decide, with the times of the acknowledgements."""

    @property
    def is_attached(self) -> bool:
        """A stopping process closes its connections first."""
        process = self.process
        return process is not None and process.machine.state == "running" and not process.is_stopping

    async def visit(self, until: float) -> None:
        """Come, stay for a while, leave and come back. Once it has cleared up it stays."""
        loop, chance = self._world.loop, self._world.chance
        while not self._world.is_over:
            up = [
                process
                for process in self._fleet.up()
                if process.machine.state == "running" and not process.is_stopping
            ]
            if up and await self._attach(chance.choice(up)):
                leaves_at = loop.time() + chance.uniform(0.5, 6.0)
                while self.is_attached and (loop.time() < leaves_at or loop.time() > until):
                    await self._within(self._look())
                    await asyncio.sleep(LOOKS_SECONDS)
                await self._leave()
            await asyncio.sleep(chance.uniform(0.05, 0.5))

    async def _within(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something in the process, however that ends; whether it did."""
        process = self._at
        if process is None or not process.is_up:
            work.close()
            return False
        ended: asyncio.Future[None] = self._world.loop.create_future()
        process.when_it_ends(lambda: None if ended.done() else ended.set_result(None))
        doing = process.spawn(work)
        await asyncio.wait([doing, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not doing.done():
            return False
        try:
            doing.result()
        except (OperationError, StoreUnavailable):
            return False
        return True

    async def _attach(self, process: Process) -> bool:
        self._stays += 1
        self._at, self.attachment_id = process, f"{self.name}-{self._stays}"
        self.declined.clear()
        self._world.trace.add(self.name, f"comes to {self.key.session} through {process.name}")
        if await self._within(self._resume(process)):
            self.process = process
            self._world.trace.add(self.name, f"is at {self.key.session}")
            return True
        await self._leave()  # It may have been attached all the same.
        return False

    async def _resume(self, process: Process) -> None:
        arrival = Arrival(attachment_id=self.attachment_id, tools=(self.tool,), capabilities=(ANSWERS_PERMISSIONS,))
        await process.presence.resume(self.key, arrival, continue_pending_work=True, settings=_no_settings)

    async def _leave(self) -> None:
        """Until the process has heard it, or is gone, as a connection that is closed."""
        self.process, process = None, self._at
        self._world.trace.add(self.name, f"leaves {self.key.session}")
        while process is not None and process.is_up and not self._world.is_over:
            if await self._within(self._leaving(process)):
                return
            await asyncio.sleep(0.5)

    async def _leaving(self, process: Process) -> None:
        await process.presence.leave(self.key, self.attachment_id)

    async def _look(self) -> None:
        process = self._at
        assert process is not None
        for asked in await process.operations.requests(self.key):
            is_new = asked.kind == "permission" and asked.request_id not in self.declined
            if not (is_new and self._is_declining):
                continue
            if await process.presence.decline(self.key, self.attachment_id, asked.request_id):
                self.declined[asked.request_id] = self._world.loop.time()
                self._world.trace.add(self.name, f"declines {asked.request_id}")


async def _no_settings(state: State) -> SettingsChanged:
    return SettingsChanged()
