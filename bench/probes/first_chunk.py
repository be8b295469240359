"""How long one client waits for the first token, over what the model itself takes to answer the same request.

The bar is for a model that sends its next token a few milliseconds later, as models do: what is timed is the way of
the first token. One that sends two hundred at once is reported beside it: there the first is shown while the rest is
being read, which the direct call does not wait for.
"""

import statistics
import time

from bench.place import Place
from bench.probes.turns import MANY_TOKENS
from holdfast.app import INSTRUCTIONS, Runtime
from holdfast.events.context import SystemText, UserText
from holdfast.events.event import Event
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.model import ModelRequest
from holdfast.server.embedded.session import Session
from holdfast.session.prompt import RULES
from holdfast.tools.built_in import BUILT_IN, HOLDFAST_TOOLS
from holdfast.tools.registry import Registry

WARM_UPS = 3
FEW_TOKENS = "3"


async def measure(place: Place) -> dict[str, float]:
    return {
        "first_chunk": await _over_direct(place, place.paced_url, FEW_TOKENS),
        "first_chunk_instant": await _over_direct(place, place.model_url, MANY_TOKENS),
    }


async def _over_direct(place: Place, url: str, text: str) -> float:
    """The median delay through a session less that of the call itself, in milliseconds."""
    model = HttpModel(ChatCompletions("bench"), base_url=url, name="bench")
    direct: list[float] = []
    ours: list[float] = []
    async with model, Runtime(database=place.folder / "first.db", model=model) as runtime:
        for _ in range(WARM_UPS + place.size.first_chunks):
            direct.append(await call_directly(model, text))
            ours.append(await _ours(await runtime.session(), text))
    return (statistics.median(ours[WARM_UPS:]) - statistics.median(direct[WARM_UPS:])) * 1000


async def call_directly(model: HttpModel, text: str) -> float:
    """With the request that the runtime sends for the first message of a session."""
    system = SystemText(f"{INSTRUCTIONS}\n\n{RULES}")
    request = ModelRequest(messages=(system, UserText(text)), tools=Registry(BUILT_IN).offered(HOLDFAST_TOOLS, ()))
    started = time.perf_counter()
    first = 0.0
    async for _ in model.stream(request):
        first = first or time.perf_counter() - started
    return first


async def _ours(session: Session, text: str) -> float:
    """From the call of `send` to the first text in a reader's hands."""
    readings = session.events()
    await anext(readings)
    started = time.perf_counter()
    await session.send(text)
    first = 0.0
    async for reading in readings:
        if isinstance(reading, Delta):
            first = first or time.perf_counter() - started
        elif isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            return first
    raise AssertionError("a session is followed without end")
