"""The memory that somebody costs `holdfast serve` who reads a session in which nothing happens.

First a thousand readers of the log, each of a session of its own; then as many of the stream of one turn, whose model
has stopped in the middle of its answer.
"""

import asyncio
import resource

from bench import holdfast_server, served
from bench.http_client import Connection, connections, request_bytes
from bench.memory import megabytes_of
from bench.models import HELD
from bench.place import Place
from bench.served import Served

OPEN_FILES = 10_000
"""Enough for all of them, in both processes."""


async def measure(place: Place) -> dict[str, float]:
    _allow_connections()
    readers = place.size.http_readers
    async with holdfast_server.holdfast(place.folder, place.paced_url) as server:
        with served.beside(place):
            async with connections(server.url, 2) as (client, talker):
                held = await holdfast_server.make_session(server, client)
                await _until_heard(talker, holdfast_server.turn_request(server, held, HELD), b'"text-delta"')
                sessions = [await holdfast_server.make_session(server, client) for _ in range(readers)]
                before = megabytes_of(server.pid)
                async with connections(server.url, readers) as of_log:
                    await _all_hear(
                        of_log, [holdfast_server.log_request(server, session) for session in sessions], b"event: queue"
                    )
                    with_log = megabytes_of(server.pid)
                    async with connections(server.url, readers) as of_turn:
                        await _all_hear(of_turn, [_turn(server, held)] * readers, b'"text-delta"')
                        with_turn = megabytes_of(server.pid)
    return {
        "http_reader_memory": (with_log - before) / readers * 1000,
        "http_turn_reader_memory": (with_turn - with_log) / readers * 1000,
    }


def _allow_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


async def _all_hear(readers: list[Connection], requests: list[bytes], sign: bytes) -> None:
    for reader, request in zip(readers, requests, strict=True):
        await _until_heard(reader, request, sign)


async def _until_heard(connection: Connection, request: bytes, sign: bytes) -> None:
    """Until it has read all there is. The stream stays open."""
    heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    came = b""

    def hear(data: bytes) -> None:
        nonlocal came
        came += data
        if sign in came and not heard.done():
            heard.set_result(None)

    connection.send(request, hear)
    await heard


def _turn(server: Served, session: str) -> bytes:
    path = f"/v1/sessions/{session}/stream"
    return request_bytes("GET", holdfast_server.host_of(server), path, headers=server.headers)
