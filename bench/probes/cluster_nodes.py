"""How much later a client of one node has a token of a turn that runs on another, than a client of that other node.

Both follow the same session while one turn of it is streamed; one node works, and the other only serves. Every token
is the time at which the model wrote it, so that the same one is known by both.
"""

import asyncio
import re
import statistics
import time
from contextlib import AbstractAsyncContextManager

from bench import cluster, holdfast_server, served
from bench.calibration import percentile
from bench.http_client import Connection, connections
from bench.place import Place
from bench.probes.delivery import SETTLING
from bench.served import Served

_DELTA = re.compile(rb'event: delta\ndata: [^\n]*"text":"([^"]*)"')

PATIENCE_SECONDS = 60.0

USUAL_PACE = 60
"""Tokens in a second, as the quicker of the usual models write them. At the pace of the other probes, 200, two of them
come in each of the 10 ms in which at most one message goes out for a session."""


async def measure(place: Place) -> dict[str, float]:
    usual, fast = place.size.cluster_tokens // 3, place.size.cluster_tokens
    async with cluster.database(place, "nodes") as url:
        with served.on_all_cores(place):
            async with _node(place, url, "near") as near, _node(place, url, "far", "--no-work") as far:
                with served.beside(place):
                    added, delays = _figures(*await _followed(near, far, usual, f"{usual} at {USUAL_PACE}"))
                    added_fast, _ = _figures(*await _followed(near, far, fast, str(fast)))
    return {
        "cluster_node_p50": statistics.median(added),
        "cluster_node_p99": percentile(added, 99),
        "cluster_node_fast_p50": statistics.median(added_fast),
        "cluster_own_node_p50": statistics.median(delays),
    }


def _figures(at_near: dict[int, int], at_far: dict[int, int]) -> tuple[list[float], list[float]]:
    """How much later each token came there, and how late it was here; without those of the beginning."""
    settled = sorted(at_near)[int(len(at_near) * SETTLING) :]
    added = [(at_far[token] - at_near[token]) / 1_000_000 for token in settled]
    return added, [(at_near[token] - token) / 1_000_000 for token in settled]


def _node(place: Place, url: str, name: str, *options: str) -> AbstractAsyncContextManager[Served]:
    folder = place.folder / name
    folder.mkdir()
    settings = {"HOLDFAST_DATABASE": url, "HOLDFAST_REDIS": place.redis_url}
    return holdfast_server.holdfast(folder, place.paced_url, *options, **settings)


async def _followed(near: Served, far: Served, tokens: int, message: str) -> tuple[dict[int, int], dict[int, int]]:
    """When each token came, at the one and at the other."""
    async with connections(near.url, 2) as (talker, here), connections(far.url, 1) as (there,):
        session = await holdfast_server.make_session(near, talker)
        readers = Reader(tokens), Reader(tokens)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await readers[0].begin(here, holdfast_server.log_request(near, session))
            await readers[1].begin(there, holdfast_server.log_request(far, session))
            asked = holdfast_server.message_request(near, session, message)
            (await talker.ask(asked)).expect(200)
            return await readers[0].all, await readers[1].all


class Reader:
    """One who follows a session, and notes when each token came."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._partial = b""
        self._word = b""
        self._came: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._listens: asyncio.Future[None] = self._loop.create_future()
        self.all: asyncio.Future[dict[int, int]] = self._loop.create_future()

    async def begin(self, connection: Connection, request: bytes) -> None:
        """Until it has read all there is."""
        connection.send(request, self.hear)
        await self._listens

    def hear(self, data: bytes) -> None:
        now = time.monotonic_ns()
        whole, ended, self._partial = (self._partial + data).rpartition(b"\n\n")
        if not ended:
            return
        if not self._listens.done() and b"event: queue" in whole:
            self._listens.set_result(None)
        for text in _DELTA.findall(whole):
            *stamps, self._word = (self._word + text).split(b" ")
            for stamp in stamps:
                self._note(int(stamp), now)

    def _note(self, token: int, now: int) -> None:
        if self.all.done():
            return
        if token in self._came:
            self.all.set_exception(RuntimeError("a token came twice"))
            return
        self._came[token] = now
        if len(self._came) == self._tokens:
            self.all.set_result(self._came)
