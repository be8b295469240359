"""The same worlds on a real database: every call runs on SQLite or PostgreSQL, one after the other, while virtual time
stands still.

The stores run on an event loop of their own, in a thread, by the machine's clock; their leases use the world's clock.
The database is read into the records of the store in memory, so that the same promises judge a world.
"""

import asyncio
import contextlib
import functools
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import asyncpg

from holdfast.events.ids import Fence, Key, Owner, SessionId, TurnId
from holdfast.events.inbox import InboxItem
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite import leases, task_rows
from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.liveness import boottime_ms
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Early, Lease, NewSession, ReleaseKind, Store, Unit
from holdfast.store.turn_limits import TurnLimits
from proof.crash import evidence, postgres_evidence
from proof.crash.kept_session import Kept
from proof.crash.plant import replace
from proof.postgres_server import PostgresServer
from proof.simulation.memory.store import CHANGES_SECONDS, UNWANTED_SECONDS, Call, Carrier
from proof.simulation.memory.tables import Database, InboxRecord, SessionRecord, Written

Kind = Literal["sqlite", "postgresql"]

KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql")

CALL_SECONDS: Final = 60.0
"""Real time that a call to a real database may take."""

STARTED_SECONDS: Final = 1_700_000_000
"""The time of PostgreSQL's clock when a world begins."""

READS: Final = frozenset(
    {
        "attachments",
        "audit_log",
        "catch_up",
        "events_after",
        "glance",
        "granted",
        "grants",
        "held",
        "host_tasks",
        "identity",
        "is_alive",
        "keys",
        "ledger",
        "load",
        "oldest_unclaimed",
        "owner_tasks",
        "receipt",
        "requests",
        "row",
        "rows",
        "running_tasks",
        "secret",
        "stray_tasks",
        "tails",
        "task",
        "tasks",
        "turns",
        "waiting_items",
    }
)
"""Verbs after which no other process need look for anything."""

T = TypeVar("T")


class Elsewhere:
    """An event loop in a thread of its own. Callers block until their coroutine has ended there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Place(Protocol):
    """A database of one kind, for one world after the other."""

    @property
    def kind(self) -> Kind: ...

    @property
    def elsewhere(self) -> Elsewhere: ...

    @contextmanager
    def world(self, now: Callable[[], float]) -> Iterator[None]:
        """An empty database, whose own time is `now` in seconds."""
        ...

    def at_this_time(self) -> None:
        """Set the database's clock to the world's."""
        ...

    def open(self, **given: Any) -> Store: ...

    def kill(self, store: Store) -> None:
        """Its process died: end the store's background work."""
        ...

    def sessions(self) -> list[tuple[Any, ...]]:
        """Owner, id, fence, holder, claims, runnable, since when, status, turn, host and parent of each."""
        ...

    def kept(self, key: Key) -> Kept: ...

    def places(self, key: Key) -> list[tuple[str, str | None]]:
        """The keys of all inbox items, in the order of the queue, and the stops that removed them."""
        ...


_SESSIONS = (
    "SELECT owner, id, fence, lease_holder, claims, runnable, runnable_since, status, turn_id, host, parent FROM "
)


class SqlitePlace:
    """A file for each world, in a temporary folder. Its processes see at once that one of them died."""

    kind: Kind = "sqlite"

    def __init__(self) -> None:
        self.elsewhere = Elsewhere()
        self._path = Path()
        self._reading = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._reading.shutdown()
        self.elsewhere.close()

    @contextmanager
    def world(self, now: Callable[[], float]) -> Iterator[None]:
        def since_boot() -> int:
            return int(now() * 1000) + 1_000_000

        with tempfile.TemporaryDirectory(prefix="holdfast-world-") as folder:
            self._path = Path(folder) / "holdfast.db"
            replace(leases, "boottime_ms", since_boot)
            replace(task_rows, "boottime_ms", since_boot)
            try:
                yield
            finally:
                replace(leases, "boottime_ms", boottime_ms)
                replace(task_rows, "boottime_ms", boottime_ms)

    def at_this_time(self) -> None:
        """The store reads the time whenever it needs it, so nothing is to be set."""

    def open(self, **given: Any) -> Store:
        return self.elsewhere.run(SqliteStore.open(self._path, **given))

    def kill(self, store: Store) -> None:
        cast(SqliteStore, store)._liveness.end()

    def sessions(self) -> list[tuple[Any, ...]]:
        with contextlib.closing(connect(self._path, read_only=True)) as db:
            return db.execute(f"{_SESSIONS} session ORDER BY created_at, id").fetchall()

    def kept(self, key: Key) -> Kept:
        return self._reading.submit(evidence.kept_in_file, self._path, key).result()

    def places(self, key: Key) -> list[tuple[str, str | None]]:
        with contextlib.closing(connect(self._path, read_only=True)) as db:
            asked = "SELECT item_key, removed_by FROM inbox WHERE owner = ? AND session = ? ORDER BY place, sequence"
            return db.execute(asked, (key.owner, key.session)).fetchall()


_VIRTUAL_CLOCK = """
CREATE SCHEMA world;
CREATE UNLOGGED TABLE world.moment (now timestamptz NOT NULL);
INSERT INTO world.moment VALUES (to_timestamp(0));
CREATE FUNCTION world.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM world.moment';
"""

_EMPTY = """
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables
               WHERE schemaname = 'holdfast' AND tablename NOT IN ('migration', 'identity') LOOP
    EXECUTE format('DELETE FROM holdfast.%I', name);
  END LOOP;
END $$
"""


class PostgresPlace:
    """A server with one database, emptied before each world. Its `clock_timestamp()` is one that the world sets: a
    schema that is searched before the catalogue has a function of that name."""

    kind: Kind = "postgresql"

    def __init__(self) -> None:
        self.elsewhere = Elsewhere()
        self._server = PostgresServer()
        self._server.__enter__()
        self.url = self._server.url("worlds")
        self._now: Callable[[], float] = lambda: 0.0
        self._says: float | None = None
        self._db: Any = self.elsewhere.run(self._prepare())

    def close(self) -> None:
        self.elsewhere.run(self._db.close())
        self.elsewhere.close()
        self._server.__exit__(None, None, None)

    async def _prepare(self) -> Any:
        first = await asyncpg.connect(self._server.url())
        await first.execute("CREATE DATABASE worlds")
        await first.close()
        await migrate(DatabaseAddress(self.url))
        db = await asyncpg.connect(self.url)
        await db.execute(_VIRTUAL_CLOCK)
        await db.execute("ALTER DATABASE worlds SET search_path = world, public, pg_catalog")
        return db

    @contextmanager
    def world(self, now: Callable[[], float]) -> Iterator[None]:
        self._now, self._says = now, None
        self.elsewhere.run(self._db.execute(_EMPTY))
        self.at_this_time()
        yield

    def at_this_time(self) -> None:
        now = STARTED_SECONDS + self._now()
        if now != self._says:
            self._says = now
            self.elsewhere.run(self._db.execute("UPDATE world.moment SET now = to_timestamp($1::float8)", now))

    def open(self, **given: Any) -> Store:
        self.at_this_time()
        return self.elsewhere.run(PostgresStore.open(self.url, **given))

    def kill(self, store: Store) -> None:
        self.elsewhere.run(cast(PostgresStore, store)._liveness.stop())

    def sessions(self) -> list[tuple[Any, ...]]:
        found = self.elsewhere.run(self._db.fetch(f"{_SESSIONS} holdfast.session ORDER BY created_at, id"))
        return [tuple(row) for row in found]

    def kept(self, key: Key) -> Kept:
        return self.elsewhere.run(postgres_evidence.kept(self.url, key))

    def places(self, key: Key) -> list[tuple[str, str | None]]:
        asked = "SELECT item_key, removed_by FROM holdfast.inbox WHERE owner = $1 AND session = $2"
        found = self.elsewhere.run(self._db.fetch(f"{asked} ORDER BY place, sequence", key.owner, key.session))
        return [(row[0], row[1]) for row in found]


class RealDatabase(Database):
    """The world's view of a real database. The records are read again at every access."""

    def __init__(self, now: Callable[[], float], place: Place) -> None:
        super().__init__(now)
        self.place = place
        self.stores: dict[str, Store] = {}
        self.writers: dict[Key, dict[int, Written]] = {}
        """The writer of each event: a real database does not record it."""
        self._inspector = place.open(node="inspector")

    @property
    def sessions(self) -> dict[Key, SessionRecord]:
        return {record.key: record for record in map(self._record, self.place.sessions())}

    @sessions.setter
    def sessions(self, value: dict[Key, SessionRecord]) -> None:
        assert not value

    def _record(self, row: tuple[Any, ...]) -> SessionRecord:
        owner, session, fence, holder, claims, runnable, since, status, turn_id, host, parent = row
        key = Key(Owner(owner), SessionId(session))
        record = SessionRecord(key, NewSession(host=host, parent=parent, created_at=0), status=status, title="", now=0)
        record.fence, record.holder, record.claims = Fence(fence), holder, claims
        record.is_runnable, record.runnable_since = bool(runnable), since
        record.turn_id = None if turn_id is None else TurnId(turn_id)
        waiting = self.place.elsewhere.run(_awaited(self._inspector.waiting_items(key)))
        record.inbox = {item.key: InboxRecord(item, b"", 0) for item in waiting}
        return record

    def whole(self) -> dict[Key, tuple[SessionRecord, Kept]]:
        """All of every session, as it is once the world is over."""
        return {key: self._whole(record) for key, record in self.sessions.items()}

    def _whole(self, record: SessionRecord) -> tuple[SessionRecord, Kept]:
        kept = self.place.kept(record.key)
        record.events = list(kept.events)
        writers = self.writers.get(record.key, {})
        record.written = [writers.get(event.position, Written(None, "?")) for event in kept.events]
        items: dict[str, InboxItem] = {item.key: item for item in kept.inbox}
        places = [(key, removed_by) for key, removed_by in self.place.places(record.key) if key in items]
        record.inbox = {key: InboxRecord(items[key], b"", 0) for key, _ in places}
        for key, removed_by in places:
            record.inbox[key].removed_by = removed_by
        return record, kept

    def note_written(self, unit: Unit, head: int, process: str) -> None:
        writers = self.writers.setdefault(unit.key, {})
        for position in range(head - len(unit.events) + 1, head + 1):
            writers[position] = Written(unit.fence, process)

    def open(self, name: str, *, node: str, tools: frozenset[str], clock: Clock, limits: TurnLimits) -> Store:
        store = self.stores[name] = self.place.open(node=node, tools=tools, clock=clock, limits=limits)
        return store

    def died(self, name: str) -> None:
        self.place.kill(self.stores[name])

    def close(self) -> None:
        for store in (*self.stores.values(), self._inspector):
            with contextlib.suppress(StoreUnavailable):
                self.place.elsewhere.run(store.close())


class DistantStore:
    """A real store as one process uses it: every call is forwarded to the thread, and its result returned."""

    def __init__(self, db: RealDatabase, store: Store, name: str, clock: Clock, carry: Carrier) -> None:
        self._db = db
        self._store = store
        self._name = name
        self._clock = clock
        self._carry = carry
        self._is_closed = False
        self._others_wrote = asyncio.Event()
        db.on_commit.append(self._others_wrote.set)

    @property
    def limits(self) -> TurnLimits:
        return self._store.limits

    @property
    def process(self) -> str:
        return self._store.process

    def __getattr__(self, verb: str) -> Any:
        return functools.partial(self._call, verb)

    async def _call(self, verb: str, *given: Any, **named: Any) -> Any:
        if self._is_closed:
            raise StoreUnavailable("store_closed", "The store is closed.")
        unit: Unit | None = given[0] if verb == "commit" else None
        lease: Lease | None = given[0] if verb == "release" else None
        how: ReleaseKind | None = named.get("how") if verb == "release" else None
        run = functools.partial(self._run, verb, given, named)
        return await self._carry(Call(verb, run, unit, lease, how))

    def _run(self, verb: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """At the moment at which it takes place. Nothing else happens until it is done."""
        place = self._db.place
        place.at_this_time()
        result = place.elsewhere.run(_awaited(getattr(self._store, verb)(*given, **named)))
        if verb not in READS:
            self._db.committed(self._name)
            self._db.last_write = verb
        return result

    async def claim(self, *, early: Early | None = None, **named: Any) -> list[Claim]:
        told, here, loop = list[list[Claim]](), copy_context(), asyncio.get_running_loop()

        def run() -> list[Claim]:
            claims: list[Claim] = self._run("claim", (), {**named, "early": told.append if early else None})
            for found in told if early is not None else ():
                assert early is not None
                loop.call_soon(early, found, context=here)
            return claims

        if self._is_closed:
            raise StoreUnavailable("store_closed", "The store is closed.")
        claims: list[Claim] = await self._carry(Call("claim", run))
        return claims

    async def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        seen = self._db.commits_of_others(self._name)
        while not self._is_closed:
            if self._db.commits_of_others(self._name) == seen:
                self._others_wrote.clear()
                await self._others_wrote.wait()
            await self._clock.sleep(CHANGES_SECONDS if wanted() else UNWANTED_SECONDS)
            version = self._db.commits_of_others(self._name)
            if wanted() and version != seen and not self._is_closed:
                seen = version
                yield

    async def close(self) -> None:
        if self._is_closed:
            return
        try:
            await self._call("close")
        except StoreUnavailable:
            pass  # The others will find out.
        finally:
            self._is_closed = True
            self._others_wrote.set()
            self._db.on_commit.remove(self._others_wrote.set)


async def _awaited(work: Any) -> Any:
    return await work


@contextmanager
def place_of(kind: Kind) -> Iterator[Place]:
    place = SqlitePlace() if kind == "sqlite" else PostgresPlace()
    try:
        yield place
    finally:
        place.close()
