"""How long a process that has just opened the database needs until it can decide what a long session does next:
claim, load, fold, decide. With the snapshot that the last turn left, and with that snapshot lost."""

import shutil
import sqlite3
import time
from pathlib import Path

from bench import long_log
from bench.models import ONE_TOKEN
from bench.place import Place
from bench.probes.turns import run_turn
from holdfast.app import Runtime
from holdfast.events.ids import MessageId, Owner, SessionId
from holdfast.events.inbox import Message
from holdfast.live.local import LocalLive
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.decide import decide
from holdfast.session.inputs import Inputs
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Key
from holdfast.turns.held_session import HeldSession
from holdfast.turns.load import load_claimed

KEY = Key(Owner("local"), SessionId("long"))
WAITING = Message(message_id=MessageId("next"), text=ONE_TOKEN)


async def prepare(place: Place) -> None:
    path = place.prepared / "long.db"
    store = await SqliteStore.open(path, node="bench")
    try:
        await long_log.write(store, KEY, events=place.size.long_events)
    finally:
        await store.close()
    model = HttpModel(ChatCompletions("bench"), base_url=place.model_url, name="bench")
    async with model, Runtime(database=path, model=model) as runtime:
        await run_turn(runtime.open(KEY.session), ONE_TOKEN)


async def measure(place: Place) -> dict[str, float]:
    kept, lost = place.folder / "kept.db", place.folder / "lost.db"
    for path in (kept, lost):
        shutil.copyfile(place.prepared / "long.db", path)
        await _put(path)
    _lose_snapshot(lost)
    return {"cold_open": await _open(kept), "cold_open_without_snapshot": await _open(lost)}


async def _put(path: Path) -> None:
    store = await SqliteStore.open(path, node="bench")
    await store.put(KEY, WAITING, item_key="message:next", queue_limit=1)
    await store.close()


def _lose_snapshot(path: Path) -> None:
    db = sqlite3.connect(path)
    assert db.execute("DELETE FROM snapshot").rowcount == 1, "the product itself is to have left one"
    db.commit()
    db.close()


async def _open(path: Path) -> float:
    store = await SqliteStore.open(path, node="bench")
    clock, bounds = SystemClock(), Bounds()
    started = time.perf_counter()
    (claim,) = await store.claim(limit=1)
    found = await load_claimed(store, claim, max_claims=bounds.max_claims_without_progress)
    assert found is not None
    held = HeldSession(
        store=store, live=LocalLive(), clock=clock, bounds=bounds, new_id=lambda: "id", lease=claim.lease, folded=found
    )
    action = decide(held.state, Inputs(new_id=lambda: "id", now=0, bounds=bounds, inbox=held.inbox))
    taken = time.perf_counter() - started
    assert isinstance(action, Append)
    await store.close()
    return taken * 1000
