"""A conversation that outgrows its model's window many times: what its last turns cost, against its first ones.

Counted are the processor time of the process, the events that are read from the database, and the bytes of the calls of
the model as they go out. The model is in the process and takes no time of its own that differs from turn to turn.
"""

import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from holdfast.app import Runtime
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.model import Chunk, ModelRequest
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.server.embedded.session import Session
from holdfast.store.store import Store

WINDOW: Final = 6_000
"""In tokens. The conversation reaches it for the first time after some twelve turns."""

BLOCK: Final = 10
"""The first and the last tenth of the turns are compared."""

ANSWER: Final = "So it is noted, and the work goes on. " * 12


class CountedModel(ScriptedModel):
    """A scripted model that counts the bytes that it is sent."""

    def __init__(self) -> None:
        super().__init__(Script((Rule((Reply(text=ANSWER),)),), window=WINDOW))
        self.bytes = 0
        self._wire = ChatCompletions("bench")

    def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        self.bytes += len(self._wire.encode(request, reasoning_source=self.reasoning_source))
        return super().stream(request)


class CountedReads:
    """Counts the events that a store returns."""

    def __init__(self, store: Store) -> None:
        self.events = 0
        for name in ("load", "events_after"):
            setattr(store, name, self._counted(getattr(store, name)))

    def _counted(self, read: Any) -> Any:
        async def counted(*given: Any, **more: Any) -> Any:
            found = await read(*given, **more)
            if found is not None:
                self.events += len(found if isinstance(found, tuple) else found.events)
            return found

        return counted


async def measure(runtime: Runtime, model: CountedModel, session: Session, *, turns: int) -> dict[str, float]:
    """The figures by their last name: each is the ratio of the last block to the first one."""
    reads = CountedReads(runtime.store)
    costs: list[tuple[float, int, int]] = []
    for block in range(BLOCK):
        before = (time.process_time(), reads.events, model.bytes)
        for number in range(turns // BLOCK):
            said = f"Sentence {block}-{number}: the lamp on the stair is {number} years old. " + "Note it, please. " * 8
            assert (await session.run(said)).reason == "completed"
        now = (time.process_time(), reads.events, model.bytes)
        costs.append((now[0] - before[0], now[1] - before[1], now[2] - before[2]))
    (cpu, events, sent), (last_cpu, last_events, last_sent) = costs[0], costs[-1]
    return {
        "cpu": last_cpu / cpu,
        "events": (last_events + 1) / (events + 1),
        "bytes": last_sent / sent,
        "compactions": await _compactions(session),
        "turn_cpu": last_cpu / (turns // BLOCK) * 1000,
    }


async def _compactions(session: Session) -> int:
    events = [found async for found in session.events(follow=False) if isinstance(found, Event)]
    return sum(isinstance(event.body, CompactionEnded) and event.body.success for event in events)
