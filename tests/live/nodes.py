"""Nodes of one cluster inside the test process: each has a store and a live layer of its own.

They share nothing but the database and Redis, and a test may cut either.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.events.event import Event
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta, WaitStatus
from holdfast.live.redis import RedisLive
from holdfast.server.embedded.session import Session as RuntimeSession
from holdfast.store.clock import Clock
from tests.http.world import Model
from tests.live.patience import patience
from tests.turns.recording import Read

NEVER = "3600"
"""Seconds. A period so long that it never elapses in a test."""

DEAF = {"HOLDFAST_CLAIM_EVERY_SECONDS": NEVER, "HOLDFAST_TAILS_EVERY_SECONDS": NEVER}
"""The settings of a worker that looks for work only after a wake-up."""


class Nodes:
    """The database of one test, a model, and a Redis."""

    def __init__(self, folder: Path, model: Model, *, redis: str, database: str) -> None:
        self.folder = folder
        self.model = model
        self.redis = redis
        self.database = database

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "HOLDFAST_DATA_DIR": str(self.folder / "data"),
            "HOLDFAST_MODEL": "openai/scripted",
            "HOLDFAST_MODEL_BASE_URL": self.model.url,
            "HOLDFAST_REDIS": self.redis,
            "HOLDFAST_DATABASE": self.database,
        }

    def node(self, *, work: bool, **settings: str) -> Runtime:
        (self.folder / "data").mkdir(exist_ok=True)
        return Runtime(config=load({}, self.environ | settings), work=work, environ=self.environ)

    def node_on(self, clock: Clock) -> Runtime:
        """A working node on this clock, which may leap: its lease outlasts every leap."""
        (self.folder / "data").mkdir(exist_ok=True)
        lease = {"HOLDFAST_LEASE_TTL_SECONDS": "86400", "HOLDFAST_RENEW_EVERY_SECONDS": NEVER}
        return Runtime(config=load({}, self.environ | DEAF | lease), environ=self.environ, clock=clock)

    @contextlib.asynccontextmanager
    async def pair(self, **settings: str) -> AsyncIterator[tuple[Runtime, Runtime]]:
        """One node that only reads and accepts, and one that only works."""
        async with self.node(work=False) as reading, self.node(work=True, **settings) as working:
            yield reading, working


def live_of(node: Runtime) -> RedisLive:
    live = node.operations.live
    assert isinstance(live, RedisLive)
    return live


class Following:
    """A reader that follows a session from its start, and keeps what it reads."""

    def __init__(self, session: RuntimeSession) -> None:
        self._session = session
        self._readings = session.events()
        self.read = Read()
        self.deltas = 0

    async def until_text(self, words: str) -> None:
        async with patience():
            while words not in self._said():
                await self._next()

    async def until_the_end(self) -> None:
        async with patience():
            while not any(isinstance(event.body, TurnEnded) for event in self.read.events):
                await self._next()

    async def next_status(self) -> WaitStatus:
        async with patience():
            while not isinstance(reading := await self._next(), WaitStatus):
                pass
        return reading

    async def check(self) -> None:
        """Assert that it read exactly what the log holds."""
        readings = [reading async for reading in self._session.events(follow=False)]
        whole = Read().take(reading for reading in readings if isinstance(reading, Event | Delta))
        assert self.read == whole

    async def _next(self) -> object:
        reading = await anext(self._readings)
        if isinstance(reading, Event | Delta):
            self.read.take([reading])
            self.deltas += isinstance(reading, Delta)
        return reading

    def _said(self) -> str:
        return "".join(data.decode() for data in self.read.said().values())
