"""Surveys a database file from outside: it is neither created nor migrated, and processes that use it do not notice."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from holdfast.store.sqlite.connections import connect, refuse_folder, unusable
from holdfast.store.sqlite.liveness import Liveness, boot_id, boottime_ms
from holdfast.store.sqlite.migrations import NAMES, schema_of
from holdfast.store.sqlite.order import Order
from holdfast.store.sqlite.queries import SQL
from holdfast.store.survey import (
    NO_DESCRIPTION,
    Contents,
    DatabaseServer,
    ProcessDescription,
    ProcessRow,
    Schema,
    Survey,
    Work,
)
from holdfast.store.turn_limits import NO_LIMITS, TurnLimits


def survey(path: Path, *, limits: TurnLimits = NO_LIMITS, with_contents: bool = True) -> Survey:
    """The state of the database at this moment. Raises `StoreUnusable`, which says what to do."""
    refuse_folder(path)
    if not path.exists():  # Connecting would create it.
        return _of_nothing(path)
    try:
        with contextlib.closing(connect(path, read_only=True)) as db:
            schema = schema_of(db, path)
            db.execute("BEGIN")
            return _look(db, path, schema, limits, with_contents=with_contents)
    except sqlite3.Error as error:
        raise unusable(error, path) from error


def _look(db: sqlite3.Connection, path: Path, schema: Schema, limits: TurnLimits, *, with_contents: bool) -> Survey:
    server = _server(db, path)
    if schema.version == 0:
        return Survey(server=server, schema=schema, work=Work(), processes=(), contents=Contents())
    processes = _processes(db, path, schema)
    return Survey(
        server=server,
        schema=schema,
        work=_work(db, processes, schema, limits),
        processes=processes,
        contents=_contents(db, path) if with_contents else None,
    )


def _of_nothing(path: Path) -> Survey:
    server = DatabaseServer(version=sqlite3.sqlite_version, role="embedded", is_writable=True, latency_ms=0.0)
    return Survey(
        server=server, schema=Schema(version=0, pending=NAMES), work=Work(), processes=(), contents=Contents()
    )


def _server(db: sqlite3.Connection, path: Path) -> DatabaseServer:
    started = time.perf_counter()
    db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return DatabaseServer(
        version=sqlite3.sqlite_version,
        role="embedded",
        is_writable=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
        latency_ms=(time.perf_counter() - started) * 1000,
    )


def _processes(db: sqlite3.Connection, path: Path, schema: Schema) -> tuple[ProcessRow, ...]:
    """A process lives while the operating system holds its file lock: see `liveness.py`."""
    liveness = Liveness(path.resolve())
    holds = dict(db.execute(SQL["survey_held"]).fetchall())
    described = {} if schema.pending else {row[0]: row[1:] for row in db.execute(SQL["survey_descriptions"])}
    found = []
    for token, node, boot in db.execute(SQL["survey_processes"]).fetchall():
        renewed_at, *about = described.get(token, (None,))
        is_known = renewed_at is not None and boot == boot_id()
        found.append(
            ProcessRow(
                token=token,
                node=node,
                is_alive=not liveness.is_dead(token),
                renewed_seconds_ago=(boottime_ms() - renewed_at) / 1000 if is_known else None,
                holds=holds.get(token, 0),
                about=_about(*about) if about else NO_DESCRIPTION,
            )
        )
    return tuple(sorted(found, key=lambda process: (process.node, process.token)))


def _about(role: str, version: str, started_at: int, max_sessions: int) -> ProcessDescription:
    return ProcessDescription(role=role, version=version, started_at=started_at, max_sessions=max_sessions)  # type: ignore[arg-type]


def _work(db: sqlite3.Connection, processes: tuple[ProcessRow, ...], schema: Schema, limits: TurnLimits) -> Work:
    now = time.time_ns() // 1_000_000
    backlog, oldest, overdue, due, requests = db.execute(SQL["survey_work"], (now,)).fetchone()
    if not schema.pending:  # In an older schema no order accounts for slots.
        oldest = Order(limits).oldest(db)
    return Work(
        held=sum(process.holds for process in processes),
        orphaned=sum(process.holds for process in processes if not process.is_alive),
        backlog=backlog,
        oldest_waiting_seconds=None if oldest is None else max(0, now - oldest) / 1000,
        overdue=overdue,
        lag_seconds=0.0 if due is None else (now - due) / 1000,
        waiting_requests=requests,
    )


def _contents(db: sqlite3.Connection, path: Path) -> Contents:
    sessions, unfinished, events = db.execute(SQL["survey_contents"]).fetchone()
    size = _bytes(path) + _bytes(path.with_name(path.name + "-wal"))
    return Contents(sessions=sessions, unfinished_sessions=unfinished, events=events, bytes=size)


def _bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
