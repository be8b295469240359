"""By how much one frozen server delays the sessions of another worker.

A worker's store has twenty sessions that append all the time, each after its last append; beside them messages are sent
to new sessions of other owners, and each is claimed, begun and let go of. Then a server, a process of its own, is
frozen inside a put into one more session of the worker, which appends as well: every batch of the worker meets the
locked row. The figure is the longest append or turn of all other sessions while the server is frozen, less the longest
before it was.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import cluster
from bench.frozen_server import LIMITS
from bench.place import Place
from bench.probes.appends import BODY
from bench.processes import ROOT
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, SessionId
from holdfast.events.inbox import Message
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Accepted, Committed, Key, Lease, NewSession, Unit

APPENDING = 20
LOCKED = Key(Owner("locked"), SessionId("locked"))


async def measure(place: Place) -> dict[str, float]:
    async with cluster.database(place, "frozen") as url:
        store = await PostgresStore.open(url, node="bench", limits=LIMITS)
        try:
            leases = [await _held(store, Key(Owner(f"owner-{n}"), SessionId("appending"))) for n in range(APPENDING)]
            locked = await _held(store, LOCKED)
            with _server(url) as server:
                work = Work(store, leases)
                await work.longest(place.size.frozen_seconds / 4)  # Statements are prepared.
                before = await work.longest(place.size.frozen_seconds)
                await asyncio.to_thread(_order, server, "put", "frozen")
                blocked = asyncio.create_task(_append(store, locked, 1))
                frozen = await work.longest(place.size.frozen_seconds)
                assert not blocked.done(), "its session is not locked"
            assert isinstance(await blocked, Committed)
        finally:
            await store.close()
    return {"cluster_frozen": max(0.0, frozen - before) * 1000, "cluster_frozen_longest": frozen * 1000}


class Work:
    """All that the worker does, and the longest that any of it took."""

    def __init__(self, store: PostgresStore, leases: list[Lease]) -> None:
        self._store = store
        self._leases = leases
        self._turns = 0

    async def longest(self, seconds: float) -> float:
        until = time.perf_counter() + seconds
        found = await asyncio.gather(*(self._appends(lease, until) for lease in self._leases), self._talk(until))
        return max(found)

    async def _appends(self, lease: Lease, until: float) -> float:
        longest, number = 0.0, 0
        while (started := time.perf_counter()) < until:
            number += 1
            assert isinstance(await _append(self._store, lease, number), Committed)
            longest = max(longest, time.perf_counter() - started)
        return longest

    async def _talk(self, until: float) -> float:
        longest = 0.0
        while (started := time.perf_counter()) < until:
            self._turns += 1
            lease = await _held(self._store, Key(Owner(f"talker-{self._turns}"), SessionId("talk")))
            assert isinstance(await _append(self._store, lease, 1), Committed)
            assert await self._store.release(lease, seen_tail=1, how="done")
            longest = max(longest, time.perf_counter() - started)
        return longest


async def _held(store: PostgresStore, key: Key) -> Lease:
    """A new session that was sent a message, and is claimed for it."""
    await store.commit(Unit(key=key, fence=None, creates=NewSession(created_at=1)))
    put = await store.put(key, Message(message_id=MessageId("m"), text="go"), item_key="m", queue_limit=1)
    assert isinstance(put, Accepted)
    (claim,) = await store.claim(limit=1)
    assert claim.lease.key == key
    return claim.lease


async def _append(store: PostgresStore, lease: Lease, number: int) -> object:
    event = Event(Position(0), EventId(f"event-{number:08}"), number, BODY)
    return await store.commit(Unit(key=lease.key, fence=lease.fence, events=(event,)))


@contextmanager
def _server(url: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "bench.frozen_server", url, LOCKED.owner, LOCKED.session]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            _hear(server, "ready")
            yield server
        finally:
            server.kill()


def _order(server: "subprocess.Popen[str]", order: str, answer: str) -> None:
    assert server.stdin is not None
    server.stdin.write(order + "\n")
    server.stdin.flush()
    _hear(server, answer)


def _hear(server: "subprocess.Popen[str]", answer: str) -> None:
    assert server.stdout is not None
    said = server.stdout.readline().strip()
    if said != answer:
        raise RuntimeError(f"the server said {said!r} instead of {answer!r}")
