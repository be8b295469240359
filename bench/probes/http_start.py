"""How soon `holdfast serve` is ready, from nothing, and how much memory it has with nothing to do.

Idle means that a session came, had a turn and was deleted: all that calling a model takes is there and stays.
"""

import statistics
import time
from pathlib import Path

from bench import holdfast_server, served
from bench.http_client import connections, request_bytes
from bench.memory import megabytes_of
from bench.models import ONE_TOKEN
from bench.place import Place


async def measure(place: Place) -> dict[str, float]:
    ready = [await _until_ready(place, number) for number in range(place.size.http_starts)]
    return {"http_ready": statistics.median(ready) * 1000, "http_idle_memory": await _idle(place)}


async def _until_ready(place: Place, number: int) -> float:
    folder = _folder(place, f"start-{number}")
    started = time.perf_counter()
    async with (
        holdfast_server.holdfast(folder, place.model_url) as server,
        connections(server.url, 1) as (client,),
    ):
        (await client.get("/readyz")).expect(200)
        return time.perf_counter() - started


async def _idle(place: Place) -> float:
    async with holdfast_server.holdfast(_folder(place, "idle"), place.model_url) as server:
        with served.beside(place):
            async with connections(server.url, 1) as (client,):
                session = await holdfast_server.make_session(server, client)
                (await client.ask(holdfast_server.turn_request(server, session, ONE_TOKEN))).expect(200)
                path, host = f"/v1/sessions/{session}", holdfast_server.host_of(server)
                (await client.ask(request_bytes("DELETE", host, path, headers=server.headers))).expect(200, 204)
            return megabytes_of(server.pid)


def _folder(place: Place, name: str) -> Path:
    folder = place.folder / name
    folder.mkdir()
    return folder
