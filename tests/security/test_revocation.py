"""A key that is revoked ends what was asked with it, on every server: long polls, streams and slow bodies."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast.events.ids import Owner
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.key_watch import POLL_SECONDS, KeyWatch
from holdfast.testing.clock import ManualClock
from tests.http.test_identity import made_key
from tests.http.world import Client, Model, Place, Server, code_of, patience

WAIT = "50"
"""Longer than the time in which a revocation is heard, shorter than a test's patience."""


@contextlib.asynccontextmanager
async def cluster(folder: Path, model: Model, database: str) -> AsyncIterator[tuple[Place, list[Server]]]:
    """Two servers on one database."""
    place = Place(folder, model, HOLDFAST_DATABASE=database, HOLDFAST_AUTH="keys")
    async with place.serve() as one, place.serve() as two:
        yield place, [one, two]


async def until_open(server: Server, key: str, count: int) -> None:
    """As many requests are under way, beside the one that asks."""
    async with patience(), server.client(key) as observer:
        while True:
            found = re.search(
                r"^holdfast_http_requests_open (\d+)", (await observer.get("/metrics")).text, re.MULTILINE
            )
            assert found is not None
            if int(found[1]) > count:
                return


async def broken_off(client: Client, path: str) -> str:
    """Read a stream until its connection is reset, or until it ends."""
    try:
        async with client.stream("GET", path, headers={"accept": "text/event-stream"}) as response:
            async for _ in response.aiter_bytes():
                pass
    except (httpx.ReadError, httpx.RemoteProtocolError):
        return "broken off"
    return f"ended with {response.status_code}"


async def slow_body(server: Server, key: str) -> bytes:
    """The answer to a request whose body never comes whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: 20\r\n\r\n{{".encode())
    try:
        return await reader.readuntil(b"\r\n")
    finally:
        writer.close()


async def test_streams_and_calls_end_when_their_key_is_revoked(
    tmp_path: Path, own_model: Model, postgres_url: str
) -> None:
    async with cluster(tmp_path, own_model, postgres_url) as (place, servers):
        key, other = await made_key(place, "ada", "ada"), await made_key(place, "root", "root", "admin")
        async with servers[0].client(key) as ada:
            session = await ada.make()
        log = f"/v1/sessions/{session}/events"
        async with contextlib.AsyncExitStack() as clients, patience(), asyncio.TaskGroup() as group:
            polls, streams, bodies = [], [], []
            for server in servers:
                client = await clients.enter_async_context(server.client(key))
                head = (await client.get(log)).json()["cursor"]
                polls.append(group.create_task(client.get(log, params={"after": head, "wait": WAIT})))
                streams.append(group.create_task(broken_off(client, log)))
                bodies.append(group.create_task(slow_body(server, key)))
                await until_open(server, other, 3)
            assert (await place.run("keys", "revoke", key.split("_")[1])).code == 0
            for poll in polls:
                answer = await poll
                assert (answer.status_code, code_of(answer)) == (401, "not_signed_in")
            assert [await stream for stream in streams] == ["broken off"] * 2
            assert [b" 401 " in await body for body in bodies] == [True, True]
        for server in servers:
            async with server.client(other) as root:
                assert (await root.get("/v1/sessions")).status_code == 200, "nobody else is sent away"


# The watch by itself


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.revoked: set[str] = set()
        self.is_store_away = False
        self.watch = KeyWatch(self.clock, self._is_valid)

    async def _is_valid(self, identity: Identity) -> bool:
        if self.is_store_away:
            raise OSError("the database is away")
        return identity.key_id not in self.revoked

    async def work(self, name: str) -> str:
        """Waits for ever, for somebody with that key."""
        identity = Identity(owner=Owner("ada"), role="user", name="ada", key_id=name)
        try:
            async with self.watch.over(identity):
                await asyncio.Event().wait()
        except ApiError as error:
            return error.code
        raise AssertionError("it waits for ever")

    async def pass_time(self, seconds: float) -> None:
        await self.clock.until_sleeping()
        await self.clock.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_only_the_work_of_the_revoked_key_ends() -> None:
    world = World()
    one, other, keyless = (asyncio.create_task(world.work(name)) for name in ("one", "other", ""))
    await world.pass_time(POLL_SECONDS)
    world.revoked = {"one", ""}
    await world.pass_time(POLL_SECONDS)
    assert (one.done(), other.done(), keyless.done()) == (True, False, False)
    assert await one == "not_signed_in"
    for task in (other, keyless):
        task.cancel()
    await asyncio.gather(other, keyless, return_exceptions=True)


async def test_a_request_that_comes_after_all_others_have_ended_is_watched_too() -> None:
    world = World()
    first = asyncio.create_task(world.work("one"))
    await world.clock.until_sleeping()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await world.pass_time(POLL_SECONDS)
    assert not world.clock.sleeping, "nobody is left to be watched"
    second = asyncio.create_task(world.work("two"))
    world.revoked = {"two"}
    async with patience():
        await world.pass_time(POLL_SECONDS)
        assert await second == "not_signed_in"


async def test_an_unreachable_store_ends_no_work_and_is_asked_again() -> None:
    world = World()
    work = asyncio.create_task(world.work("one"))
    world.is_store_away, world.revoked = True, {"one"}
    await world.pass_time(POLL_SECONDS)
    assert not work.done()
    world.is_store_away = False
    await world.pass_time(POLL_SECONDS)
    assert await work == "not_signed_in"


async def test_a_timeout_of_the_work_itself_is_its_own() -> None:
    world = World()
    with pytest.raises(TimeoutError):
        async with world.watch.over(Identity(owner=Owner("ada"), role="user", name="ada", key_id="one")):
            raise TimeoutError
