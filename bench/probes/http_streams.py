"""Durable streaming over HTTP against a bare relay that keeps nothing: the same model, the same clients, in turns.

Ours has each turn in a session of its own, made beforehand, and commits every token before it is sent; afterwards the
database must have all of them. The relay sends every token by itself.
"""

import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench import holdfast_server, processes, served
from bench.http_client import connections, request_bytes
from bench.http_load import WORD, Load, load
from bench.models import TOKENS
from bench.place import Place
from bench.probes.turns import MANY_TOKENS
from bench.served import Served

REPEATS = 3
MOST_TRIES = 5
"""A comparison is made again when somebody else was on the relay's core."""

NAMES = (20, 100)
"""The clients that the bars speak of; there are as many as the size says."""


async def measure(place: Place) -> dict[str, float]:
    async with holdfast_server.holdfast(place.folder, place.model_url) as ours, relay(place) as bare:
        with served.beside(place):
            await _pair(bare, ours, place.size.clients, rounds=1)
            pairs = await _pairs(place, bare, ours)
    check_database(place.folder)
    return {key: value for name in NAMES for key, value in _figures(name, pairs[name], place.size.own_core).items()}


async def _pairs(place: Place, bare: Served, ours: Served) -> dict[int, list[tuple[Load, Load]]]:
    """As many as it takes to have some that can be compared, of each number of clients in turn."""
    pairs: dict[int, list[tuple[Load, Load]]] = {name: [] for name in NAMES}
    for _ in range(MOST_TRIES):
        for name, clients in zip(NAMES, place.size.http_clients, strict=True):
            if len(_comparable(pairs[name], place.size.own_core)) < REPEATS:
                pairs[name].append(await _pair(bare, ours, clients, rounds=place.size.rounds))
    return pairs


def _comparable(pairs: Sequence[tuple[Load, Load]], own_core: float) -> list[tuple[Load, Load]]:
    return [(bare, ours) for bare, ours in pairs if bare.had_its_core(own_core)]


async def _pair(bare: Served, ours: Served, clients: int, *, rounds: int) -> tuple[Load, Load]:
    """The relay and then ours, the one right after the other."""
    mine = await own_requests(ours, MANY_TOKENS, clients=clients, rounds=rounds)
    relayed = await load(bare, [[_relayed(bare)] * rounds] * clients, tokens=TOKENS)
    return relayed, await load(ours, mine, tokens=TOKENS)


def _figures(clients: int, pairs: Sequence[tuple[Load, Load]], own_core: float) -> dict[str, float]:
    ratios = [ours.tokens_per_second / bare.tokens_per_second for bare, ours in _comparable(pairs, own_core)]
    figures = {f"http_stream_{clients}": statistics.median(ratios)} if ratios else {}
    figures |= {
        f"http_tokens_{clients}": statistics.median(ours.tokens_per_second for _, ours in pairs),
        f"http_relay_tokens_{clients}": statistics.median(bare.tokens_per_second for bare, _ in pairs),
    }
    for name, found in (
        (f"http_token_cpu_{clients}", [ours.token_cpu_us for _, ours in pairs]),
        (f"http_relay_token_cpu_{clients}", [bare.token_cpu_us for bare, _ in pairs]),
        (f"http_busy_{clients}", [ours.busy_percent for _, ours in pairs]),
        (f"http_relay_busy_{clients}", [bare.busy_percent for bare, _ in pairs]),
    ):
        known = [figure for figure in found if figure is not None]
        figures |= {name: statistics.median(known)} if known else {}
    return figures


async def own_requests(ours: Served, text: str, *, clients: int, rounds: int) -> list[list[bytes]]:
    """What so many clients will ask of `holdfast serve`, each time in a new session."""
    async with connections(ours.url, 1) as (connection,):
        return [
            [
                holdfast_server.turn_request(ours, await holdfast_server.make_session(ours, connection), text)
                for _ in range(rounds)
            ]
            for _ in range(clients)
        ]


def _relayed(bare: Served) -> bytes:
    return request_bytes("POST", holdfast_server.host_of(bare), "/stream", b'{"text": "%b"}' % MANY_TOKENS.encode())


@asynccontextmanager
async def relay(place: Place) -> AsyncIterator[Served]:
    command = (sys.executable, "-m", "bench.relay", place.model_url)
    async with served.application(command, cwd=processes.ROOT) as server:
        yield server


def check_database(folder: Path) -> None:
    """Whatever was shown is there."""
    answers = holdfast_server.answers_in_database(folder)
    torn = [session for session, said in answers.items() if said.encode().count(WORD) != TOKENS]
    if not answers or torn:
        raise RuntimeError(f"{len(torn)} of {len(answers)} answers are not whole in the database")
