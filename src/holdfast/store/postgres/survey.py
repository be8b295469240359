"""Surveys a database from outside, over one connection: it is not migrated, and no process is registered."""

import statistics
import time
from typing import Final

import asyncpg

from holdfast.store.errors import StoreUnusable
from holdfast.store.postgres.connections import DatabaseAddress, Link, PostgresConnection
from holdfast.store.postgres.failures import unusable
from holdfast.store.postgres.migrations import schema_of
from holdfast.store.postgres.order import Order
from holdfast.store.survey import Contents, DatabaseServer, ProcessDescription, ProcessRow, Schema, Survey, Work
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits

MAY_NOT_READ: Final = (
    "PostgreSQL does not let this user read Holdfast's tables. Grant it USAGE on the schema holdfast, and SELECT on "
    "all tables in it."
)


async def survey(address: DatabaseAddress, *, limits: TurnLimits = NO_LIMITS, with_contents: bool = True) -> Survey:
    """The state of the database at this moment. Raises `StoreUnusable` or `StoreUnavailable`, which say what to do."""
    try:
        db = await address.connect()
    except Exception as error:
        raise unusable(error) from None  # The cause may hold a part of the URL.
    try:
        return await _look(db, address, limits, with_contents=with_contents)
    except asyncpg.InsufficientPrivilegeError:
        raise StoreUnusable("store_refused", MAY_NOT_READ) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise unusable(error) from error
    finally:
        db.terminate()


async def _look(db: PostgresConnection, address: DatabaseAddress, limits: TurnLimits, *, with_contents: bool) -> Survey:
    latency = await _latency_ms(db)
    schema = await schema_of(db)
    link = Link(db, address)
    await db.execute(address.begin_reading)
    server = await _server(link, latency)
    if schema.version == 0:
        return Survey(server=server, schema=schema, work=Work(), processes=(), contents=Contents())
    return Survey(
        server=server,
        schema=schema,
        work=await _work(link, schema, limits),
        processes=await _processes(link),
        contents=await _contents(link) if with_contents else None,
    )


async def _latency_ms(db: PostgresConnection) -> float:
    """The median of three round trips: the first one also warms up the connection."""
    took = []
    for _ in range(3):
        started = time.perf_counter()
        await db.fetchval("SELECT 1")
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


async def _server(link: Link, latency_ms: float) -> DatabaseServer:
    ((version, is_standby, is_read_only),) = await link.rows("survey_server")
    if is_standby:
        ((lag,),) = await link.rows("survey_standby")
        replicas = None
    else:
        ((replicas, lag),) = await link.rows("survey_replicas")
    return DatabaseServer(
        version=version,
        role="standby" if is_standby else "primary",
        is_writable=not is_standby and not is_read_only,
        latency_ms=latency_ms,
        replicas=replicas,
        replica_lag_seconds=lag,
    )


async def _work(link: Link, schema: Schema, limits: TurnLimits) -> Work:
    ((held, orphaned, backlog, oldest, overdue, due, requests, now),) = await link.rows("survey_work")
    if not schema.pending:  # In an older schema the order might read what does not exist yet.
        oldest = await Order(limits).oldest(link)
    return Work(
        held=held,
        orphaned=orphaned,
        backlog=backlog,
        oldest_waiting_seconds=None if oldest is None else max(0, now - oldest) / 1000,
        overdue=overdue,
        lag_seconds=0.0 if due is None else (now - due) / 1000,
        waiting_requests=requests,
    )


async def _processes(link: Link) -> tuple[ProcessRow, ...]:
    return tuple(
        ProcessRow(
            token=token,
            node=node,
            is_alive=is_alive,
            renewed_seconds_ago=renewed_ago,
            holds=holds,
            about=ProcessDescription(role=role, version=version, started_at=started_at, max_sessions=max_sessions),
        )
        for token, node, is_alive, renewed_ago, role, version, started_at, max_sessions, holds in await link.rows(
            "survey_processes"
        )
    )


async def _contents(link: Link) -> Contents:
    ((sessions, unfinished, events, size),) = await link.rows("survey_contents")
    return Contents(sessions=sessions, unfinished_sessions=unfinished, events=events, bytes=size or 0)
