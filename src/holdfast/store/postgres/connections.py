"""Connections to PostgreSQL: opened when they are needed, retried while the server is away, and dropped rather than
used once their state is in doubt."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import asyncpg

from holdfast.store import crash_points
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.failures import is_locked, is_lost, is_passing, is_try_again, unavailable
from holdfast.store.postgres.queries import SQL
from holdfast.store.postgres.text import from_column, to_parameter

T = TypeVar("T")

STATEMENT_SECONDS: Final = 20.0
"""The longest time of a statement: PostgreSQL ends it then, or else this process drops the connection."""
LOCK_SECONDS: Final = 10.0
"""How long a write waits for a row, or an owner, that another process has locked."""
TRY_LOCK_SECONDS: Final = 0.1
"""How long such a write keeps its connection at a time. Then it releases everything that it locked itself, so that no
other write waits behind it, and retries."""
TRY_LOCK_PAUSE_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 5.0
"""A process that freezes in the middle of a transaction keeps its row locks for no longer than this: less than other
processes wait for them."""
TRANSACTION_SECONDS: Final = 60.0
"""PostgreSQL does not count a process as idle that freezes between preparing a statement and running it, and would wait
for it without end. From version 17 on, this bounds the whole transaction."""

CONNECT_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 5.0
"""How long a call that has sent nothing yet waits for a server that is away: most restarts take less."""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

ATTEMPTS: Final = 4
"""How often a transaction is tried that conflicts with others."""

STATEMENTS_KEPT: Final = 200

LIFETIME_SECONDS: Final = 1800.0
"""How long a connection is used: a new connection plans its statements again, for the tables as they are now."""

_SETTINGS: Final = {
    "statement_timeout": f"{int(STATEMENT_SECONDS * 1000)}",
    "lock_timeout": f"{int(LOCK_SECONDS * 1000)}",
    "idle_in_transaction_session_timeout": f"{int(IDLE_SECONDS * 1000)}",
    # Statements are short: compiling one would take longer than running it, and so would planning it each time.
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

BOUNDS_TRANSACTIONS: Final = 17
"""The first version of PostgreSQL that knows `transaction_timeout`."""
_TRANSACTION_BOUND: Final = f"transaction_timeout = '{int(TRANSACTION_SECONDS * 1000)}'"


class ServerVersion(Protocol):
    @property
    def major(self) -> int: ...


class PostgresConnection(Protocol):
    """The methods of asyncpg's connections that the store uses."""

    async def fetch(self, query: str, *given: Any) -> list[Sequence[Any]]: ...

    async def fetchval(self, query: str, *given: Any) -> Any: ...

    async def execute(self, query: str, *given: Any, timeout: float | None = None) -> str: ...

    async def add_listener(self, channel: str, heard: Callable[[Any, int, str, object], None]) -> None: ...

    def add_termination_listener(self, lost: Callable[[Any], None]) -> None: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    def get_server_version(self) -> ServerVersion: ...


class DatabaseAddress:
    """The address of a database, and how to connect to it. Its URL, which may hold a password, is never shown."""

    __slots__ = ("_bounds_transactions", "_lock_seconds", "_url", "is_pooled")

    def __init__(self, url: str, *, is_pooled: bool = False, lock_seconds: float | None = None) -> None:
        self._url = url
        self._lock_seconds = lock_seconds
        self._bounds_transactions = False
        self.is_pooled = is_pooled
        """A pooler may run each transaction in another server process, so no state may be left in one for the next."""

    def __repr__(self) -> str:
        return "DatabaseAddress(***)"

    def impatient(self, *, lock_seconds: float) -> "DatabaseAddress":
        """The same address, for connections that wait for a lock no longer than `lock_seconds`."""
        return DatabaseAddress(self._url, is_pooled=self.is_pooled, lock_seconds=lock_seconds)

    async def connect(self, *, patience_seconds: float | None = None) -> PostgresConnection:
        """A new connection. While the server is away, it is retried with a growing backoff."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience_seconds is None else patience_seconds)
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._connect_once()
            except Exception as error:
                if not is_passing(error) or time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _connect_once(self) -> PostgresConnection:
        connection: PostgresConnection = await asyncpg.connect(
            self._url,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS + 5,
            statement_cache_size=0 if self.is_pooled else STATEMENTS_KEPT,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings={"application_name": "holdfast", **({} if self.is_pooled else self._settings)},
        )
        self._bounds_transactions = connection.get_server_version().major >= BOUNDS_TRANSACTIONS
        if self._bounds_transactions and not self.is_pooled:
            try:
                await connection.execute(f"SET {_TRANSACTION_BOUND}")
            except BaseException:
                connection.terminate()
                raise
        return connection

    @property
    def begin(self) -> str:
        """The statement that begins a writing transaction."""
        return "BEGIN" + self._locally

    @property
    def begin_reading(self) -> str:
        """The statement that begins a reading transaction, which sees one snapshot."""
        return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" + self._locally

    @property
    def _settings(self) -> dict[str, str]:
        if self._lock_seconds is None:
            return _SETTINGS
        return _SETTINGS | {"lock_timeout": f"{int(self._lock_seconds * 1000)}"}

    @property
    def _locally(self) -> str:
        """Behind a pooler the settings are made for the transaction, because its connections are shared with other
        clients."""
        if not self.is_pooled:
            return ""
        settings = [f"{name} = '{value}'" for name, value in self._settings.items()]
        settings += [_TRANSACTION_BOUND] * self._bounds_transactions
        return "".join(f"; SET LOCAL {setting}" for setting in settings)


class Link:
    """One connection, which runs the statements of `queries.sql` by name."""

    __slots__ = ("begin", "is_pooled", "raw", "since")

    def __init__(self, raw: PostgresConnection, address: DatabaseAddress) -> None:
        self.raw = raw
        self.begin = address.begin
        self.is_pooled = address.is_pooled
        self.since = time.monotonic()

    async def rows(self, name: str, *given: Any) -> list[tuple[Any, ...]]:
        return await self.ask(SQL[name], *given)

    async def ask(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        found = await self.raw.fetch(statement, *map(to_parameter, given))
        return [tuple(map(from_column, row)) for row in found]

    async def row(self, name: str, *given: Any) -> tuple[Any, ...] | None:
        found = await self.rows(name, *given)
        return found[0] if found else None

    async def run(self, name: str, *given: Any) -> int:
        """Run a statement, and return the number of rows that it wrote."""
        status = await self.raw.execute(SQL[name], *map(to_parameter, given))
        return int(status.rpartition(" ")[2])

    async def give_up(self) -> None:
        """Leave no transaction open. If that is uncertain, the connection is terminated."""
        if self.raw.is_closed() or not self.raw.is_in_transaction():
            return
        try:
            await self.raw.execute("ROLLBACK", timeout=1)
        except Exception:
            self.raw.terminate()


class Lane:
    """A few connections for one kind of work, which other kinds of work can't use up."""

    def __init__(self, address: DatabaseAddress, *, size: int) -> None:
        self.address = address
        self.size = size
        self._places = asyncio.Semaphore(size)
        self._free: list[Link] = []
        self._is_closed = False

    async def take(self) -> Link:
        try:
            async with asyncio.timeout(STATEMENT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                "store_busy", "Every connection of this process to PostgreSQL is in use. Try again."
            ) from None
        try:
            while self._free:
                link = self._free.pop()
                if not link.raw.is_closed() and time.monotonic() - link.since < LIFETIME_SECONDS:
                    return link
                link.raw.terminate()
            return Link(await self.address.connect(), self.address)
        except BaseException:
            self._places.release()
            raise

    def adopt(self, connection: PostgresConnection) -> None:
        """Use this connection first."""
        self._free.append(Link(connection, self.address))

    def give_back(self, link: Link) -> None:
        if not link.raw.is_closed() and (self._is_closed or link.raw.is_in_transaction()):
            link.raw.terminate()
        if not link.raw.is_closed():
            self._free.append(link)
        self._places.release()

    def drop_unused(self) -> None:
        """Close the unused connections: one that was lost is seldom lost alone, and each would cost a reader a try."""
        for link in self._free:
            link.raw.terminate()
        self._free.clear()

    async def close(self) -> None:
        self._is_closed = True
        for link in self._free:
            try:
                await link.raw.close(timeout=2)
            except Exception:
                link.raw.terminate()
        self._free.clear()


Reads = Callable[[Link], Awaitable[T]]
Writes = Callable[[Link], Awaitable[tuple[T, str | None]]]
"""The result and, if something was written, the detail of its crash point."""


async def read(lane: Lane, work: Reads[T], *, is_one: bool) -> T:
    """Run `work` in one snapshot. Reading changes nothing, so it is retried after a lost connection.

    `is_one`: the work is a single statement, which is a snapshot by itself. (Behind a pooler it still runs in a
    transaction, because the settings are made for a transaction.)"""
    in_transaction = lane.address.is_pooled or not is_one
    for attempt in range(ATTEMPTS):
        link = await _begun(lane, lane.address.begin_reading if in_transaction else None)
        try:
            result = await work(link)
            if in_transaction:
                await link.raw.execute("COMMIT")
            return result
        except Exception as error:
            _drop(link, error)
            if is_lost(error):
                lane.drop_unused()
            if not (is_lost(error) or is_try_again(error)) or attempt == ATTEMPTS - 1:
                raise unavailable(error) from error
        finally:
            await link.give_up()
            lane.give_back(link)
    raise AssertionError("unreachable")


async def write(lane: Lane, verb: str, work: Writes[T], *, is_synced: bool = True, patient: Lane | None = None) -> T:
    """Run `work` in one transaction. It is retried only if it was rolled back because of a conflict with others.

    `patient`: the lane of writes that wait for a lock, so that they take no connection from writes that need not."""
    deadline = time.monotonic() + LOCK_SECONDS
    failures = 0
    while True:
        link = await _begun(lane, lane.address.begin + ("" if is_synced else "; SET LOCAL synchronous_commit = off"))
        try:
            result, detail = await work(link)
            await commit(link, () if detail is None else (f"{verb}:{detail}",))
            return result
        except Exception as error:
            _drop(link, error)
            waits = patient is not None and is_locked(error) and time.monotonic() < deadline
            failures += not waits
            if not waits and (not is_try_again(error) or failures == ATTEMPTS):
                raise unavailable(error) from error
        finally:
            await link.give_up()
            lane.give_back(link)
        if waits and patient is not None:
            if lane is patient:
                await asyncio.sleep(TRY_LOCK_PAUSE_SECONDS * random.uniform(0.5, 1))
            lane = patient


async def commit(link: Link, points: tuple[str, ...]) -> None:
    """Make the transaction durable. If the connection is lost meanwhile, the outcome is unknown."""
    for point in points:
        crash_points.reach(f"{point}:before")
    if await link.raw.execute("COMMIT") != "COMMIT":
        raise StoreUnavailable("store_failed", "PostgreSQL rolled the transaction back.")
    for point in points:
        crash_points.reach(f"{point}:after")


async def _begun(lane: Lane, begin: str | None) -> Link:
    """A connection in a new transaction. A connection that broke while it was unused is detected here, and replaced
    without an error."""
    for attempt in itertools.count(1):
        try:
            link = await lane.take()
        except Exception as error:
            raise unavailable(error) from error
        try:
            if begin is not None:
                await link.raw.execute(begin)
            return link
        except BaseException as error:
            link.raw.terminate()
            lane.give_back(link)
            if not is_lost(error) or isinstance(error, TimeoutError) or attempt > lane.size + ATTEMPTS:
                raise unavailable(error) from error
    raise AssertionError("unreachable")


def _drop(link: Link, error: BaseException) -> None:
    if is_lost(error):
        link.raw.terminate()
