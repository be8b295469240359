"""How old a token is when a reader has it, with twenty streams at a time, each as fast as a fast model.

Every token is the time at which the model wrote it; all processes of one machine read the same clock.
"""

import asyncio
import statistics
import time

from bench.calibration import percentile
from bench.place import Place
from holdfast.app import Runtime
from holdfast.events.event import Event
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.server.embedded.session import Session

STREAMS = 20
SETTLING = 0.1
"""This part of the tokens comes while connections are opened, and is left out."""


async def measure(place: Place) -> dict[str, float]:
    tokens = place.size.streamed_tokens
    model = HttpModel(ChatCompletions("bench"), base_url=place.paced_url, name="bench")
    async with model, Runtime(database=place.folder / "delivery.db", model=model) as runtime:
        sessions = [await runtime.session() for _ in range(STREAMS)]
        cpu = time.process_time()
        streams = await asyncio.gather(*(_delays(session, tokens) for session in sessions))
        cpu = time.process_time() - cpu
    assert all(len(delays) == tokens for delays in streams), "every token must be read exactly once"
    kept = [delay for delays in streams for delay in delays[int(tokens * SETTLING) :]]
    return {
        "delivery_p50": statistics.median(kept),
        "delivery_p99": percentile(kept, 99),
        "paced_token_cpu": cpu / (tokens * STREAMS) * 1_000_000,
    }


async def _delays(session: Session, tokens: int) -> list[float]:
    """In milliseconds, one for each token."""
    await session.send(str(tokens))
    delays: list[float] = []
    partial = ""
    async for reading in session.events():
        if isinstance(reading, Delta):
            now = time.monotonic_ns()
            *stamps, partial = (partial + reading.text).split(" ")
            delays.extend((now - int(stamp)) / 1_000_000 for stamp in stamps)
        elif isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            return delays
    raise AssertionError("a session is followed without end")
