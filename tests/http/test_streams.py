"""Streams by themselves, on a clock that stands still: silence, stalls, ends and breaks."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast.events.ids import Owner
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.streams import ABORT, COMMENT, STALLED_SECONDS, EventStream, Streams
from holdfast.testing.clock import ManualClock

ADA = Identity(owner=Owner("ada"), role="user", name="ada")


class Connection:
    """The connection that a web server gives an application for one request."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_complete = False
        self.takes = asyncio.Event()
        self.takes.set()
        self.aborted = asyncio.Event()
        self.scope: dict[str, Any] = {"type": "http", "method": "GET", "extensions": {ABORT: self.aborted.set}}

    async def receive(self) -> dict[str, Any]:
        await self.aborted.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        self.sent += message.get("body", b"")
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)


class World:
    def __init__(self, *, per_owner: int = 10) -> None:
        self.clock = ManualClock()
        self.streams = Streams(self.clock, per_owner=per_owner)
        self.frames: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def told(self) -> AsyncGenerator[bytes, None]:
        try:
            while (frame := await self.frames.get()) is not None:
                if isinstance(frame, Exception):
                    raise frame
                yield frame
        finally:
            self.closed.set()

    def opened(self, connection: Connection) -> "asyncio.Task[None]":
        stream = self.streams.respond(ADA, self.told())
        return asyncio.create_task(stream(connection.scope, connection.receive, connection.send))


@pytest.fixture
async def world() -> World:
    return World()


async def pass_time(world: World, seconds: float) -> None:
    """As much of it as there is, in pieces, so that whoever wakes may sleep again."""
    for _ in range(int(seconds)):
        await world.clock.until_sleeping()
        await world.clock.advance(1)
        await asyncio.sleep(0)


async def test_frames_are_sent_as_they_come_and_the_end_is_an_end(world: World) -> None:
    connection = Connection()
    telling = world.opened(connection)
    world.frames.put_nowait(b"data: 1\n\n")
    world.frames.put_nowait(None)
    await telling
    assert (connection.sent, connection.is_complete) == (b"data: 1\n\n", True)
    assert len(world.streams) == 0


async def test_fault_38_no_ten_seconds_pass_without_a_byte(world: World) -> None:
    connection = Connection()
    telling = world.opened(connection)
    before, quiet = b"", 0
    for _ in range(120):
        await pass_time(world, 1)
        quiet = 0 if connection.sent != before else quiet + 1
        before = connection.sent
        assert quiet < 10
    assert connection.sent == COMMENT * connection.sent.count(COMMENT)
    world.frames.put_nowait(None)
    await telling


async def test_fault_37_a_client_that_goes_ends_the_reading_and_nothing_else(world: World) -> None:
    connection = Connection()
    telling = world.opened(connection)
    world.frames.put_nowait(b"data: 1\n\n")
    await asyncio.sleep(0)
    connection.aborted.set()
    await telling
    assert world.closed.is_set()
    assert not connection.is_complete


async def test_a_stream_that_fails_is_not_ended_as_complete(world: World) -> None:
    connection = Connection()
    telling = world.opened(connection)
    world.frames.put_nowait(RuntimeError("the log can't be read"))
    with pytest.raises(RuntimeError):
        await telling
    assert not connection.is_complete
    assert len(world.streams) == 0


async def test_fault_35_a_client_that_takes_nothing_is_let_go_of(world: World) -> None:
    connection = Connection()
    telling = world.opened(connection)
    await asyncio.sleep(0)
    connection.takes.clear()
    world.frames.put_nowait(b"data: 1\n\n")
    for _ in range(3):
        world.frames.put_nowait(b"data: more\n\n")
    await pass_time(world, STALLED_SECONDS + 4)
    assert connection.aborted.is_set()
    await telling
    assert world.frames.qsize() == 3, "the rest was never taken from the log"


async def test_all_of_them_are_broken_off_at_once(world: World) -> None:
    connections = [Connection(), Connection()]
    telling = [world.opened(connection) for connection in connections]
    await pass_time(world, 1)
    assert len(world.streams) == 2
    world.streams.break_all()
    await asyncio.gather(*telling)
    assert not any(connection.is_complete for connection in connections)


async def test_only_so_many_are_open_for_one_owner() -> None:
    world = World(per_owner=1)
    connection = Connection()
    telling = world.opened(connection)
    await pass_time(world, 1)
    with pytest.raises(ApiError, match="At most 1"):
        world.streams.respond(ADA, world.told())
    world.frames.put_nowait(None)
    await telling
    assert isinstance(world.streams.respond(ADA, world.told()), EventStream)
