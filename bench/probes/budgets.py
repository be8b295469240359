"""What a budget costs: the CPU of a turn of 200 tokens for which money is reserved and settled, against the same turn
without a budget. Two runtimes, each on a database of its own, take turns, and the median of the rounds' ratios counts.

The turns are those of the line `turn_200_cpu`: streamed over HTTP from a model that never pauses, with a price.
"""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from bench.models import TOKENS
from bench.place import Place
from bench.probes.turns import MANY_TOKENS, run_turn
from holdfast.app import Runtime
from holdfast.config import load
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.info import ModelInfo, TokenPrice, TokenRates

ROUNDS = 7
DOLLAR = 1_000_000
INFO = ModelInfo(
    max_output=TOKENS,
    price=TokenPrice(rates=TokenRates(input=DOLLAR, output=DOLLAR, cache_read=DOLLAR, cache_write=DOLLAR)),
    is_known=True,
)


async def measure(place: Place) -> dict[str, float]:
    model = HttpModel(ChatCompletions("bench"), base_url=place.model_url, name="bench", info=INFO)
    async with model, AsyncExitStack() as opened:
        free = await opened.enter_async_context(_runtime(place, model, "free"))
        budgeted = await opened.enter_async_context(_runtime(place, model, "budgeted", budget_day=1_000_000 * DOLLAR))
        for runtime in (free, budgeted):
            await _cpu(place, runtime)
        ratios = []
        for number in range(ROUNDS):
            first, second = (free, budgeted) if number % 2 else (budgeted, free)
            costs = {first: await _cpu(place, first), second: await _cpu(place, second)}
            ratios.append(costs[budgeted] / costs[free])
        spent = await budgeted.operations.store.spending(0, 1 << 30)
        if not sum(row.calls for row in spent) or await budgeted.operations.store.settle_left():
            raise RuntimeError("nothing was reserved, or something is left of it")
    return {"budget_cpu_ratio": statistics.median(ratios)}


def _runtime(place: Place, model: HttpModel, name: str, **settings: object) -> Runtime:
    folder = place.folder / name
    folder.mkdir(mode=0o700)
    return Runtime(config=load({"data_dir": folder, "titles": "words", **settings}, {}), model=model)


async def _cpu(place: Place, runtime: Runtime) -> float:
    """Seconds of CPU for each turn, with all clients at once."""
    clients, rounds = place.size.clients, place.size.rounds
    sessions = [[await runtime.session() for _ in range(rounds)] for _ in range(clients)]

    async def client(number: int) -> None:
        for session in sessions[number]:
            await run_turn(session, MANY_TOKENS)

    started = time.process_time()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return (time.process_time() - started) / (clients * rounds)
