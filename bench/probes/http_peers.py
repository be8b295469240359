"""Durable streaming over HTTP against what somebody would use instead, on the same model: pydantic-ai behind FastAPI,
which keeps nothing, and Agno's AgentOS with SQLite.

All have the same clients, and each turn is a conversation of its own. They are slow enough for one turn of each client
to say all there is to say.
"""

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

from bench import holdfast_server, served
from bench.http_client import request_bytes
from bench.http_load import Load, load, words
from bench.models import TOKENS
from bench.peers import environment
from bench.place import Place
from bench.probes.http_streams import check_database, own_requests
from bench.probes.turns import MANY_TOKENS
from bench.served import Served

REPEATS = 2
MOST_TRIES = 4
"""A comparison is made again when somebody else was on a peer's core."""

Round = tuple[Load, Load, Load]
"""Ours, pydantic-ai's and Agno's."""

_FORM = {"content-type": "application/x-www-form-urlencoded"}


async def prepare(place: Place) -> None:
    environment.install(place.peers)


async def measure(place: Place) -> dict[str, float]:
    async with (
        holdfast_server.holdfast(place.folder, place.model_url) as ours,
        _peer(place, "pydantic_ai_app.py") as pydantic_ai,
        _peer(place, "agno_app.py", str(place.folder / "agno.db")) as agno,
    ):
        with served.beside(place):
            await _round(ours, pydantic_ai, agno, clients=1)  # Everybody imports what they need.
            rounds: list[Round] = []
            while len(rounds) < MOST_TRIES and len(_comparable(rounds, place.size.own_core)) < REPEATS:
                rounds.append(await _round(ours, pydantic_ai, agno, clients=place.size.clients))
    check_database(place.folder)
    return _figures(rounds, place.size.own_core)


def _figures(rounds: Sequence[Round], own_core: float) -> dict[str, float]:
    ratios = [
        own.tokens_per_second / max(first.tokens_per_second, second.tokens_per_second)
        for own, first, second in _comparable(rounds, own_core)
    ]
    own, first, second = (
        statistics.median(load.tokens_per_second for load in loads) for loads in zip(*rounds, strict=True)
    )
    figures = {"http_peer_ratio": statistics.median(ratios)} if ratios else {}
    return figures | {"http_pydantic_ai_tokens": first, "http_agno_tokens": second, "http_peers_own_tokens": own}


def _comparable(rounds: Sequence[Round], own_core: float) -> list[Round]:
    return [found for found in rounds if found[1].had_its_core(own_core) and found[2].had_its_core(own_core)]


async def _round(ours: Served, pydantic_ai: Served, agno: Served, *, clients: int) -> Round:
    mine = await own_requests(ours, MANY_TOKENS, clients=clients, rounds=1)
    own = await load(ours, mine, tokens=TOKENS)
    text = b'{"text": "%b"}' % MANY_TOKENS.encode()
    asked = request_bytes("POST", holdfast_server.host_of(pydantic_ai), "/stream", text)
    first = await load(pydantic_ai, [[asked]] * clients, tokens=TOKENS)
    second = await load(agno, [[_to_agno(agno)]] * clients, tokens=TOKENS, count=_words_of_agno)
    return own, first, second


def _to_agno(server: Served) -> bytes:
    """No session is named: it makes one."""
    form = urlencode({"message": MANY_TOKENS, "stream": "true"}).encode()
    return request_bytes("POST", holdfast_server.host_of(server), "/agents/bench/runs", form, headers=_FORM)


def _words_of_agno(body: bytes) -> int:
    """It repeats the whole of the answer at its end."""
    return words(body.partition(b"event: RunContentCompleted")[0])


@asynccontextmanager
async def _peer(place: Place, name: str, *arguments: str) -> AsyncIterator[Served]:
    program = Path(environment.__file__).with_name(name)
    command = (str(environment.python_of(place.peers)), str(program), place.model_url, *arguments)
    async with served.application(command, cwd=place.folder, environ=environment.environ()) as server:
        yield server
