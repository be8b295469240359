"""How old a token is when a client of `holdfast serve` has it, with twenty streams, each as fast as a fast model.

Every token is the time at which the model wrote it; all processes of one machine read the same clock.
"""

import asyncio
import re
import statistics
import time

from bench import holdfast_server, served
from bench.calibration import percentile
from bench.http_client import Connection, connections
from bench.place import Place
from bench.probes.delivery import SETTLING, STREAMS
from bench.served import Served

_DELTA = re.compile(rb'"type":"text-delta","id":"[^"]*","delta":"([^"]*)"')


async def measure(place: Place) -> dict[str, float]:
    tokens = place.size.streamed_tokens
    async with holdfast_server.holdfast(place.folder, place.paced_url) as server:
        with served.beside(place):
            async with connections(server.url, STREAMS) as clients:
                sessions = [await holdfast_server.make_session(server, client) for client in clients]
                cpu = server.cpu_seconds()
                streams = await asyncio.gather(
                    *(
                        _delays(server, client, session, tokens)
                        for client, session in zip(clients, sessions, strict=True)
                    )
                )
                used = server.cpu_seconds()
    kept = [delay for delays in streams for delay in delays[int(tokens * SETTLING) :]]
    figures = {"http_delivery_p50": statistics.median(kept), "http_delivery_p99": percentile(kept, 99)}
    if cpu is not None and used is not None:
        figures["http_paced_token_cpu"] = (used - cpu) / (tokens * STREAMS) * 1_000_000
    return figures


async def _delays(server: Served, client: Connection, session: str, tokens: int) -> list[float]:
    """In milliseconds, one for each token."""
    delays: list[float] = []
    partial = b""

    def hear(data: bytes) -> None:
        nonlocal partial
        now = time.monotonic_ns()
        whole, ended, partial = (partial + data).rpartition(b"\n\n")
        if not ended:
            return
        for delta in _DELTA.findall(whole):
            delays.extend((now - int(stamp)) / 1_000_000 for stamp in delta.split())

    (await client.ask(holdfast_server.turn_request(server, session, str(tokens)), hear)).expect(200)
    if len(delays) != tokens:
        raise RuntimeError(f"{len(delays)} tokens of {tokens} came: every one must be read exactly once")
    return delays
