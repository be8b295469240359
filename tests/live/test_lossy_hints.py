"""A reader on another node reads exactly the log, although hints are lost, duplicated and delayed on their way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Hint
from holdfast.live.local import LocalLive
from holdfast.live.outbox import Outbox
from holdfast.live.wire import SessionHints, decode, hints_of
from holdfast.server.reader import Reader
from tests.turns.recording import KEY, Read, recording, writes

pytestmark = pytest.mark.anyio


class Rough:
    """A lossy channel to another node: ticks of random length, and messages that are lost, duplicated or late."""

    def __init__(self, chance: Random) -> None:
        self.there = LocalLive()
        self.arrived = 0
        self._chance = chance
        self._outbox = Outbox()
        self._late: list[bytes] = []

    def take(self, key: Key, hint: Hint) -> None:
        self._outbox.add(key, hint)
        if self._chance.random() < 0.5:
            self._tick()

    def _tick(self) -> None:
        for _, message in self._outbox.take().for_sessions("here"):
            match self._chance.randrange(6):
                case 0:
                    continue
                case 1:
                    self._arrive(message)
                case 2:
                    self._late.append(message)
                    continue
                case _:
                    pass
            self._arrive(message)
        if self._late and self._chance.random() < 0.4:
            self._arrive(self._late.pop(self._chance.randrange(len(self._late))))

    def _arrive(self, message: bytes) -> None:
        _, told = decode(message)
        assert isinstance(told, SessionHints)
        for hint in hints_of(told):
            self.arrived += 1
            self.there.offer(told.key, hint)


@pytest.mark.parametrize("seed", range(15))
async def test_merged_lost_duplicated_and_late_messages_change_nothing(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    way = Rough(chance)
    here = LocalLive()
    stop_watching: Callable[[], None] = here.watch(way.take)
    async with recording(tmp_path, here) as found:
        read = Read()
        reader = Reader(found.store, way.there, KEY)
        following = asyncio.create_task(until_the_turn_ends(reader, read))
        async for _ in writes(found, chance, messages=6):
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
        way.there.lose_all()  # As the periodic read of the store does.
        await asyncio.wait_for(following, 60)
        stop_watching()
        assert way.arrived
        whole = [reading async for reading in Reader(found.store, here, KEY).until_now()]
        assert read == Read().take(whole)


async def until_the_turn_ends(reader: Reader, read: Read) -> None:
    async for found in reader.follow():
        read.take([found])
        if isinstance(found, Event) and isinstance(found.body, TurnEnded):
            return
