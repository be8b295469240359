"""How long one client waits for the first token over HTTP, over what the model itself takes to answer.

As in `first_chunk`, the direct call is the one that the server makes itself, made by the same code, and the model sends
its next token a few milliseconds later. Both are asked in turns, from the same core.
"""

import statistics
import time

from bench import holdfast_server, served
from bench.http_client import Connection, connections
from bench.place import Place
from bench.probes.first_chunk import FEW_TOKENS, WARM_UPS, call_directly
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel


async def measure(place: Place) -> dict[str, float]:
    direct: list[float] = []
    ours: list[float] = []
    async with holdfast_server.holdfast(place.folder, place.paced_url) as server:
        with served.beside(place):
            model = HttpModel(ChatCompletions("bench"), base_url=place.paced_url, name="bench")
            async with model, connections(server.url, 1) as (client,):
                for _ in range(WARM_UPS + place.size.first_chunks):
                    direct.append(await call_directly(model, FEW_TOKENS))
                    session = await holdfast_server.make_session(server, client)
                    turn = holdfast_server.turn_request(server, session, FEW_TOKENS)
                    ours.append(await _until_heard(client, turn, b'"text-delta"'))
    return {"http_first": (statistics.median(ours[WARM_UPS:]) - statistics.median(direct[WARM_UPS:])) * 1000}


async def _until_heard(connection: Connection, request: bytes, sign: bytes) -> float:
    """Seconds from the request to the first token. The rest is waited for too, so that nothing else is under way."""
    first = 0.0
    started = time.perf_counter()

    def hear(data: bytes) -> None:
        nonlocal first
        if not first and sign in data:
            first = time.perf_counter() - started

    (await connection.ask(request, hear)).expect(200)
    if not first:
        raise RuntimeError("a measured turn had no token")
    return first
