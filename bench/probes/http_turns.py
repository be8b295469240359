"""What a turn costs `holdfast serve`: of 200 tokens and of one, twenty sessions at once, streamed to their clients."""

import statistics

from bench import holdfast_server, served
from bench.http_load import Load, load, words
from bench.models import ONE_TOKEN, TOKENS
from bench.place import Place
from bench.probes.http_streams import own_requests
from bench.probes.turns import MANY_TOKENS, REPEATS
from bench.served import Served


async def measure(place: Place) -> dict[str, float]:
    async with holdfast_server.holdfast(place.folder, place.model_url) as ours:
        with served.beside(place):
            await _turns(place, ours, MANY_TOKENS)
            rounds = [
                (await _turns(place, ours, MANY_TOKENS), await _turns(place, ours, ONE_TOKEN)) for _ in range(REPEATS)
            ]
    many, one = [found for found, _ in rounds], [found for _, found in rounds]
    figures = {"http_turn_200_rate": statistics.median(found.turns_per_second for found in many)}
    for name, loads in (("http_turn_200_cpu", many), ("http_turn_1_cpu", one)):
        known = [found.turn_cpu_ms for found in loads if found.turn_cpu_ms is not None]
        figures |= {name: statistics.median(known)} if known else {}
    return figures


async def _turns(place: Place, ours: Served, text: str) -> Load:
    requests = await own_requests(ours, text, clients=place.size.clients, rounds=place.size.rounds)
    if text == ONE_TOKEN:
        return await load(ours, requests, tokens=1, count=lambda body: body.count(b'"delta":"Hello"'))
    return await load(ours, requests, tokens=TOKENS, count=words)
