"""The longest time that one request keeps a server from answering others, and the most memory that one takes.

While each of the worst requests of allowed size is under way, another client asks for something small again and again.
How long it waits counts only as far as the server had the processor: what other programs of the machine take is not the
request's doing.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from bench import holdfast_server, served
from bench.bombs import Bomb, bombs
from bench.http_client import Answer, Connection, connections, request_bytes
from bench.place import Place
from bench.served import Served

LOOKS = (
    "sessions/{made}",
    "sessions/{made}?limit=200",
    "sessions/{made}/events?limit=1000",
    "sessions/{made}/export",
    "chat/{made}",
)
"""What is asked of a session that was imported. It is forked as well, and then its model is asked something."""


GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What a request had must not hide how much the next one takes."""


SETTLE_SECONDS = 0.02


class Cost(msgspec.Struct):
    """What one request cost others: seconds without an answer, and megabytes."""

    name: str
    status: int
    pause: float
    memory: float


async def measure(place: Place) -> dict[str, float]:
    if sys.platform != "linux":
        return {}  # Elsewhere nobody can say what a process had at most since a moment ago.
    async with holdfast_server.holdfast(place.folder, place.model_url, **GIVES_BACK) as server:
        with served.beside(place):
            costs = [cost async for cost in costs_of(server, most=place.size.bombs)]
    return {
        "http_bomb_pause": max(cost.pause for cost in costs) * 1000,
        "http_bomb_memory": max(cost.memory for cost in costs),
    }


async def costs_of(server: Served, *, most: int) -> AsyncIterator[Cost]:
    """Of each of them, and of looking at what was imported."""
    async with connections(server.url, 1) as (other,):
        session = await holdfast_server.make_session(server, other)
        for number, bomb in enumerate(bombs()):
            if number == most:
                return
            cost, made = await cost_of(server, other, bomb, session)
            yield cost
            if made is not None and bomb.say:
                body = msgspec.json.encode({"text": bomb.say, "unattended": True})
                said = Bomb(f"{bomb.name}, then a message", f"/v1/sessions/{made}/messages", body)
                yield (await cost_of(server, other, said, made))[0]
            elif made is not None:
                for look in LOOKS:
                    after = Bomb(f"{bomb.name}, then GET {look}", f"/v1/{look.format(made=made)}", b"", "GET")
                    yield (await cost_of(server, other, after, session))[0]
                fork = Bomb(f"{bomb.name}, then fork", f"/v1/sessions/{made}/fork", b"{}")
                yield (await cost_of(server, other, fork, session))[0]
                said = Bomb(f"{bomb.name}, then a message", f"/v1/sessions/{made}/messages", b'{"text": "Hello."}')
                yield (await cost_of(server, other, said, made))[0]


async def cost_of(server: Served, other: Connection, bomb: Bomb, session: str) -> tuple[Cost, str | None]:
    """Until the session is done with what it was sent, too. With it, the session that was made by an import."""
    path = bomb.path.replace("{session}", session).replace("{request}", "r")
    asked = request_bytes(bomb.method, holdfast_server.host_of(server), path, bomb.body, headers=server.headers)
    before = _reset_peak(server.pid)
    asking = asyncio.create_task(_ask(server, asked, session))
    longest = 0.0
    while not asking.done():
        longest = max(longest, await _wait(server, other))
        await asyncio.sleep(0.001)
    answer = await asking
    longest = max(longest, await _wait(server, other))
    made = answer.json()["id"] if answer.status == 201 and ("import" in bomb.path or bomb.say) else None
    return Cost(bomb.name, answer.status, longest, _peak(server.pid) - before), made


async def _ask(server: Served, request: bytes, session: str) -> Answer:
    """Over a connection of its own: one that was sent too much is hung up. Then wait until the session is at rest."""
    async with connections(server.url, 1) as (client,):
        answer = await client.ask(request)
    look = request_bytes(
        "GET", holdfast_server.host_of(server), f"/v1/sessions/{session}/activity", headers=server.headers
    )
    async with connections(server.url, 1) as (client,):
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            if (await client.ask(look)).expect(200).json()["is_settled"]:
                return answer


async def _wait(server: Served, other: Connection) -> float:
    """How long a small request takes, as far as the server was at work meanwhile."""
    started, used = time.perf_counter(), server.cpu_seconds() or 0.0
    (await other.get("/healthz")).expect(200)
    return min(time.perf_counter() - started, (server.cpu_seconds() or 1e9) - used)


def _reset_peak(pid: int) -> float:
    """Begin to note anew how much memory the process has at most; how much it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _peak(pid)


def _peak(pid: int) -> float:
    found = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(found.split()[1]) * 1024 / 1_000_000
