"""What a long log costs: the same turn in a session of 10,000 events and in a fresh one, with the same context."""

import shutil
import statistics
import time

from bench import long_log
from bench.models import ONE_TOKEN
from bench.place import Place
from bench.probes.turns import run_turn
from holdfast.app import Runtime
from holdfast.events.ids import Owner, SessionId
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.server.embedded.session import Session
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Key

OWNER = Owner("local")
LONG, FRESH = SessionId("long"), SessionId("fresh")

WARM_UPS = 3
"""The first of them leaves a snapshot in the long session, as the first turn of any session that has none does."""


async def prepare(place: Place) -> None:
    store = await SqliteStore.open(place.prepared / "long.db", node="bench")
    try:
        await long_log.write(store, Key(OWNER, LONG), events=place.size.long_events)
        await long_log.write(store, Key(OWNER, FRESH))
    finally:
        await store.close()


async def measure(place: Place) -> dict[str, float]:
    path = place.folder / "long.db"
    shutil.copyfile(place.prepared / "long.db", path)
    model = HttpModel(ChatCompletions("bench"), base_url=place.model_url, name="bench")
    async with model, Runtime(database=path, model=model) as runtime:
        long, fresh = _Timed(runtime.open(LONG)), _Timed(runtime.open(FRESH))
        for number in range(WARM_UPS + place.size.long_turns):
            if number == WARM_UPS:
                long.forget()
                fresh.forget()
            for timed in (long, fresh) if number % 2 else (fresh, long):
                await timed.turn()
        assert (await long.session.look()).head >= place.size.long_events
    return {
        "long_session": long.median() / fresh.median(),
        "long_session_cpu_ratio": long.cpu / fresh.cpu,
        "long_session_ms": long.median() * 1000,
    }


class _Timed:
    """The turns of one session: how long they took, and what they cost."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cpu = 0.0
        self._times: list[float] = []

    async def turn(self) -> None:
        cpu, started = time.process_time(), time.perf_counter()
        await run_turn(self.session, ONE_TOKEN)
        self._times.append(time.perf_counter() - started)
        self.cpu += time.process_time() - cpu

    def forget(self) -> None:
        self.cpu = 0.0
        self._times.clear()

    def median(self) -> float:
        return statistics.median(self._times)
