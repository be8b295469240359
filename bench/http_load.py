"""Many clients at once, each with one turn after the other: how many tokens come, and what they cost the server."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from bench.http_client import Connection, connections
from bench.served import Served

WORD = b"word"
"""Every token of the long answer has it in it once, and nothing else in a stream has."""

Count = Callable[[bytes], int]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    tokens: int
    turns: int
    seconds: float
    cpu_seconds: float | None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def turns_per_second(self) -> float:
        return self.turns / self.seconds

    @property
    def turn_cpu_ms(self) -> float | None:
        return None if self.cpu_seconds is None else self.cpu_seconds / self.turns * 1_000

    @property
    def busy_percent(self) -> float | None:
        """How much of the time the server was at work. Little: something else held it up, the disk or its clients."""
        return None if self.cpu_seconds is None else self.cpu_seconds / self.seconds * 100

    def had_its_core(self, share: float) -> bool:
        """Whether the server was at work for so much of the time: it, and nobody else, decided how fast it went."""
        return self.busy_percent is None or self.busy_percent >= share * 100

    @property
    def token_cpu_us(self) -> float | None:
        return None if self.cpu_seconds is None else self.cpu_seconds / self.tokens * 1_000_000


def words(body: bytes) -> int:
    return body.count(WORD)


async def load(server: Served, requests: Sequence[Sequence[bytes]], *, tokens: int, count: Count = words) -> Load:
    """One client for each list of requests, on a connection that was opened before. Every answer has so many tokens."""
    async with connections(server.url, len(requests)) as opened:
        cpu, started = server.cpu_seconds(), time.perf_counter()
        answers = await asyncio.gather(*map(_one_by_one, opened, requests))
        seconds, used = time.perf_counter() - started, server.cpu_seconds()
    bodies = [body for told in answers for body in told]
    for body in bodies:
        if (came := count(body)) != tokens:
            raise RuntimeError(f"{came} tokens of {tokens} came: {body[:200]!r} … {body[-500:]!r}")
    return Load(
        tokens=tokens * len(bodies),
        turns=len(bodies),
        seconds=seconds,
        cpu_seconds=None if cpu is None or used is None else used - cpu,
    )


async def _one_by_one(connection: Connection, requests: Sequence[bytes]) -> list[bytes]:
    """They are counted later: while the server is measured, its clients only read."""
    return [(await connection.ask(request)).expect(200).body for request in requests]
