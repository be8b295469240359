"""What a turn costs: streamed over HTTP from a model that never pauses, every token committed before it is shown.

The cost of each further token is what a turn of 200 tokens costs more than one of one token; the bare consumer, which
reads the same stream and keeps nothing, is measured the same way.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from bench.models import ONE_TOKEN, TOKENS
from bench.place import Place
from holdfast.app import Runtime
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.server.embedded.session import Session

MANY_TOKENS = "Tell me a long story."
REPEATS = 3


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None


class _Piece(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Piece).decode


async def measure(place: Place) -> dict[str, float]:
    model = HttpModel(ChatCompletions("bench"), base_url=place.model_url, name="bench")
    async with (
        model,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        Runtime(database=place.folder / "turns.db", model=model) as runtime,
    ):
        work = _Work(place, http, runtime)
        await work.bare(MANY_TOKENS)
        await work.turns(MANY_TOKENS)
        rounds = [await _round(work) for _ in range(REPEATS)]
    one, many, rate, bare_one, bare_many = (statistics.median(figures) for figures in zip(*rounds, strict=True))
    further = TOKENS - 1
    bare_token, token = (bare_many - bare_one) / further, (many - one) / further
    return {
        "turn_token_ratio": token / bare_token,
        "turn_200_cpu": many,
        "turn_200_rate": rate,
        "turn_1_cpu": one,
        "bare_token_us": bare_token * 1000,
        "token_us": token * 1000,
    }


async def _round(work: "_Work") -> tuple[float, ...]:
    """Each kind once, one after the other."""
    bare_one, _ = await work.bare(ONE_TOKEN)
    one, _ = await work.turns(ONE_TOKEN)
    bare_many, _ = await work.bare(MANY_TOKENS)
    many, rate = await work.turns(MANY_TOKENS)
    return one, many, rate, bare_one, bare_many


class _Work:
    def __init__(self, place: Place, http: aiohttp.ClientSession, runtime: Runtime) -> None:
        self._url = f"{place.model_url}/chat/completions"
        self._http = http
        self._runtime = runtime
        self._clients = place.size.clients
        self._rounds = place.size.rounds

    async def bare(self, text: str) -> tuple[float, float]:
        async def call(client: int, number: int) -> None:
            await _consume(self._http, self._url, text)

        return await self._cost(call)

    async def turns(self, text: str) -> tuple[float, float]:
        """Each in a session of its own, made beforehand: what it costs then does not depend on what was said."""
        sessions = [[await self._runtime.session() for _ in range(self._rounds)] for _ in range(self._clients)]

        async def turn(client: int, number: int) -> None:
            await run_turn(sessions[client][number], text)

        return await self._cost(turn)

    async def _cost(self, call: Callable[[int, int], Awaitable[None]]) -> tuple[float, float]:
        """Milliseconds of CPU for each call, and calls in a second, with all clients at once."""

        async def client(number: int) -> None:
            for turn in range(self._rounds):
                await call(number, turn)

        cpu, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(self._clients)))
        calls = self._clients * self._rounds
        return (time.process_time() - cpu) / calls * 1000, calls / (time.perf_counter() - started)


async def run_turn(session: Session, text: str) -> None:
    result = await session.run(text)
    if result.reason != "completed":
        raise RuntimeError(f"a measured turn ended as {result.reason}: {result.error}")


async def _consume(http: aiohttp.ClientSession, url: str, text: str) -> int:
    """Read, split, decode: what nobody who wants the text can do without."""
    body = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": text}]}
    tokens = 0
    tail = b""
    async with http.post(url, data=msgspec.json.encode(body)) as response:
        while data := await response.content.readany():
            *lines, tail = (tail + data).split(b"\n")
            for line in lines:
                if line[:5] == b"data:" and line != b"data: [DONE]":
                    choices = _decode(line[5:]).choices
                    tokens += bool(choices and choices[0].delta and choices[0].delta.content)
    return tokens
