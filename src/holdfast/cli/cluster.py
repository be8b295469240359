"""`holdfast cluster status`: the processes of a database, what they do, and what waits for them. It only looks."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from holdfast.cli.ending import heed_signals
from holdfast.cli.errors import USAGE, WORLD, Refusal, explained
from holdfast.cli.escapes import visible
from holdfast.cli.surveying import RedisState, redis_state, surveyed
from holdfast.config import Config
from holdfast.store.survey import ProcessRow, Survey

WATCH_SECONDS: Final = 2.0
TOKEN_CHARACTERS: Final = 8
CLEAR: Final = "\x1b[H\x1b[2J"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all of it."""

    database: str
    survey: Survey
    redis: RedisState
    problems: tuple[str, ...]


async def show_cluster(config: Config, *, as_json: bool, watch: bool, check: bool, max_wait: float) -> int:
    """The exit status: with `check`, 1 if something is wrong."""
    if not watch:
        seen = await look(config, max_wait=max_wait)
        print(_json(seen) if as_json else "\n".join(lines(seen)))
        return WORLD if check and seen.problems else 0
    if check:
        raise Refusal("usage", "--check looks once and --watch goes on: name one of them.", exit_code=USAGE)
    await _watch(config, as_json=as_json, max_wait=max_wait)
    return 0


async def look(config: Config, *, max_wait: float) -> Seen:
    survey, redis = await asyncio.gather(surveyed(config, with_contents=False), redis_state(config))
    return Seen(
        database=config.database_shown,
        survey=survey,
        redis=redis,
        problems=tuple(problems(survey, redis, max_wait=max_wait)),
    )


async def _watch(config: Config, *, as_json: bool, max_wait: float) -> None:
    stopping = heed_signals()
    clears = sys.stdout.isatty() and not as_json
    while not stopping.is_set():
        try:
            seen = await look(config, max_wait=max_wait)
            told = _json(seen) if as_json else "\n".join((*lines(seen), ""))
        except Exception as error:
            refusal = explained(error)
            if refusal is None:
                raise
            told = _failed(refusal, as_json=as_json)
        print(CLEAR + told if clears else told, flush=True)
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await stopping.wait()
        except TimeoutError:
            continue


def _failed(refusal: Refusal, *, as_json: bool) -> str:
    """Whoever watches wants to see it come back."""
    if as_json:
        return msgspec.json.encode({"error": {"code": refusal.code, "message": refusal.message}}).decode()
    return f"{visible(refusal.message)} [{refusal.code}]\n"


# What is wrong


def problems(survey: Survey, redis: RedisState, *, max_wait: float) -> Iterator[str]:
    """A sentence for each thing that somebody should look at."""
    work, server = survey.work, survey.server
    if not server.is_writable:
        what = "a standby" if server.role == "standby" else "read-only"
        yield f"The database is {what}: nothing can be accepted or done."
    if survey.schema.version == 0:
        yield "The database has no tables yet: run `holdfast db migrate`, or start a process."
    elif not any(process.is_worker for process in survey.processes):
        yield "No process runs sessions: start `holdfast worker`, or `holdfast serve` without --no-work."
    if (waited := work.oldest_waiting_seconds) is not None and waited > max_wait:
        yield f"A session has waited for {waited:.0f} s to be run: there are too few workers, or none that may run it."
    if work.lag_seconds > max_wait:
        yield f"A timer is {work.lag_seconds:.0f} s late: no worker looks."
    if redis == "down":
        yield "Redis is down: processes hear of each other through the database, which takes them longer."


# How it is told


def _json(seen: Seen) -> str:
    survey = seen.survey
    kind = "sqlite" if survey.server.role == "embedded" else "postgresql"
    told = {
        "database": {
            "kind": kind,
            "path": seen.database,
            **msgspec.structs.asdict(survey.server),
            "schema_version": survey.schema.version,
            "pending_migrations": survey.schema.pending,
        },
        "redis": seen.redis,
        "work": survey.work,
        "processes": [_told(process) for process in survey.processes],
        "problems": seen.problems,
    }
    return msgspec.json.encode(told).decode()


def _told(process: ProcessRow) -> dict[str, object]:
    return {
        "token": process.token[:TOKEN_CHARACTERS],
        "node": process.node,
        "is_alive": process.is_alive,
        "renewed_seconds_ago": process.renewed_seconds_ago,
        "holds": process.holds,
        **msgspec.structs.asdict(process.about),
    }


def lines(seen: Seen) -> Iterator[str]:
    """The same for people."""
    yield f"Database   {visible(seen.database)}"
    yield f"           {_server(seen.survey)}"
    yield f"Redis      {seen.redis}"
    yield from _work(seen.survey)
    yield from _table(seen.survey.processes)
    for problem in seen.problems:
        yield f"! {visible(problem)}"


def _server(survey: Survey) -> str:
    server = survey.server
    kind = "SQLite" if server.role == "embedded" else f"{server.role}, PostgreSQL"
    told = [f"{kind} {visible(server.version)}", f"answers in {server.latency_ms:.1f} ms"]
    told.append(f"schema {survey.schema.version}")
    if survey.schema.pending:
        told.append(f"{len(survey.schema.pending)} migration(s) to be run")
    if server.replicas:
        told.append(f"{server.replicas} standby(s)")
    if server.replica_lag_seconds is not None:
        told.append(f"replication {server.replica_lag_seconds:.1f} s behind")
    return ", ".join(told)


def _work(survey: Survey) -> Iterator[str]:
    work = survey.work
    oldest = "" if work.oldest_waiting_seconds is None else f", the oldest for {work.oldest_waiting_seconds:.1f} s"
    orphaned = f", {work.orphaned} of them by processes that are gone" if work.orphaned else ""
    late = f", the latest by {work.lag_seconds:.1f} s" if work.overdue else ""
    yield f"Held       {work.held} session(s){orphaned}"
    yield f"Backlog    {work.backlog} session(s) wait to be run{oldest}"
    yield f"Timers     {work.overdue} late{late}"
    yield f"Requests   {work.waiting_requests} wait for somebody"


def _table(processes: tuple[ProcessRow, ...]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("process", "node", "role", "version", "sessions", "renewed", "started")]
    rows += [_row(process) for process in processes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    yield ""
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(process: ProcessRow) -> tuple[str, ...]:
    about = process.about
    runs = f"{process.holds} of {about.max_sessions}" if about.max_sessions or not about.role else "-"
    ago = process.renewed_seconds_ago
    renewed = "gone" if not process.is_alive else "-" if ago is None else f"{ago:.1f} s ago"
    started = datetime.fromtimestamp(about.started_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    cells = (process.token[:TOKEN_CHARACTERS], process.node, about.role or "?", about.version or "?", runs, renewed)
    return (*map(visible, cells), started if about.started_at else "-")
