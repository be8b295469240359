"""What the Copilot surface makes a client wait for: sessions, trivial turns one by one and at once, pings.

The clients are lean ones of our own, over TCP, so that the figures are the runtime's.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bench.copilot_runtime import Listening, listening
from bench.lean_client import LeanClient, lean_client, ping_delays
from bench.place import Place

T = TypeVar("T")


async def measure(place: Place) -> dict[str, float]:
    async with listening(place, place.folder / "home") as runtime:
        async with lean_client(runtime.port) as client:
            await client.turn(await client.create())  # the first of each imports what it needs
            create, sessions = await _create(client, place.size.copilot_creates)
            figures = await _turns(place, runtime, client, sessions)
        pings = ping_delays(runtime.port, place.size.pings)
    return {**figures, "copilot_create": create, "copilot_ping": statistics.median(pings) * 1000}


async def _create(client: LeanClient, count: int) -> tuple[float, list[str]]:
    delays, sessions = [], []
    for _ in range(count):
        started = time.perf_counter()
        sessions.append(await client.create())
        delays.append(time.perf_counter() - started)
    return statistics.median(delays) * 1000, sessions


async def _turns(place: Place, runtime: Listening, client: LeanClient, sessions: list[str]) -> dict[str, float]:
    talks, turns = place.size.copilot_talks, place.size.copilot_turns
    cpu = runtime.cpu_seconds()
    figures = {"copilot_turn": await one_by_one(client.turn, sessions[:talks], turns)}
    used = runtime.cpu_seconds()
    if cpu is not None and used is not None:
        figures["copilot_turn_cpu"] = (used - cpu) / (talks * turns) * 1000
    figures["copilot_turn_rate"] = await _at_once(client.turn, sessions[-place.size.clients :], place.size.rounds)
    return figures


async def one_by_one(turn: Callable[[T], Awaitable[None]], sessions: Sequence[T], turns: int) -> float:
    """The median, in milliseconds, of so many turns in each session."""
    delays = []
    for _ in range(turns):
        for session in sessions:
            started = time.perf_counter()
            await turn(session)
            delays.append(time.perf_counter() - started)
    return statistics.median(delays) * 1000


async def _at_once(turn: Callable[[T], Awaitable[None]], sessions: Sequence[T], rounds: int) -> float:
    """Turns in a second, while every session has one going."""

    async def talk(session: T) -> None:
        for _ in range(rounds):
            await turn(session)

    started = time.perf_counter()
    await asyncio.gather(*(talk(session) for session in sessions))
    return len(sessions) * rounds / (time.perf_counter() - started)
