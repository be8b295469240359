"""`holdfast cluster status`: the processes of a database, their work, and the backlog. It changes nothing."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from holdfast.app import redis_live_of
from holdfast.cli.database import survey_database
from holdfast.cli.errors import USAGE, WORLD, Refusal, explained
from holdfast.cli.escapes import visible
from holdfast.cli.process import watch_signals
from holdfast.config import Config
from holdfast.store.survey import ProcessRow, Survey

RedisState = Literal["up", "down", "not set"]

REDIS_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 2.0
TOKEN_CHARACTERS: Final = 8
CLEAR: Final = "\x1b[H\x1b[2J"


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster at one moment."""

    database: str
    survey: Survey
    redis: RedisState
    problems: tuple[str, ...]


async def show_cluster(config: Config, *, as_json: bool, watch: bool, check: bool, max_wait: float) -> int:
    """Print the state of the cluster and return the exit status: with `check`, 1 if there is a problem."""
    if not watch:
        report = await look(config, max_wait=max_wait)
        print(_json(report) if as_json else "\n".join(lines(report)))
        return WORLD if check and report.problems else 0
    if check:
        raise Refusal("usage", "--check looks once and --watch does not end: use one of them.", exit_code=USAGE)
    await _watch(config, as_json=as_json, max_wait=max_wait)
    return 0


async def look(config: Config, *, max_wait: float) -> ClusterReport:
    survey, redis = await asyncio.gather(survey_database(config, with_contents=False), _redis_state(config))
    return ClusterReport(
        database=config.database_shown,
        survey=survey,
        redis=redis,
        problems=tuple(problems(survey, redis, max_wait=max_wait)),
    )


async def _redis_state(config: Config) -> RedisState:
    """Whether a process could hear hints through Redis. Sends nothing that other processes would hear."""
    redis_live = redis_live_of(config)
    if redis_live is None or config.redis is None:
        return "not set"
    try:
        async with asyncio.timeout(REDIS_SECONDS), redis_live(config.redis.reveal(), namespace="looking") as live:
            return "up" if await live.answers() else "down"
    except TimeoutError:
        return "down"


async def _watch(config: Config, *, as_json: bool, max_wait: float) -> None:
    stopping = watch_signals()
    clears = sys.stdout.isatty() and not as_json
    while not stopping.is_set():
        try:
            report = await look(config, max_wait=max_wait)
            text = _json(report) if as_json else "\n".join((*lines(report), ""))
        except Exception as error:
            refusal = explained(error)
            if refusal is None:
                raise
            text = _failure(refusal, as_json=as_json)
        print(CLEAR + text if clears else text, flush=True)
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await stopping.wait()
        except TimeoutError:
            continue


def _failure(refusal: Refusal, *, as_json: bool) -> str:
    """An error as --watch shows it: it looks again, because the database may come back."""
    if as_json:
        return msgspec.json.encode({"error": {"code": refusal.code, "message": refusal.message}}).decode()
    return f"{visible(refusal.message)} [{refusal.code}]\n"


# Problems


def problems(survey: Survey, redis: RedisState, *, max_wait: float) -> Iterator[str]:
    """A sentence for each problem that an operator should look at."""
    work, server = survey.work, survey.server
    if not server.is_writable:
        what = "a standby" if server.role == "standby" else "read-only"
        yield f"The database is {what}: no message can be accepted and no session can run."
    if survey.schema.version == 0:
        yield "The database has no tables yet: run `holdfast db migrate`, or start a process."
    elif not any(process.is_worker for process in survey.processes):
        yield "No process runs sessions: start `holdfast worker`, or `holdfast serve` without --no-work."
    if (waited := work.oldest_waiting_seconds) is not None and waited > max_wait:
        yield f"A session has waited for {waited:.0f} s to be run: there are too few workers, or none may run it."
    if work.lag_seconds > max_wait:
        yield f"A timer is {work.lag_seconds:.0f} s late: no worker looks for due timers."
    if redis == "down":
        yield "Redis is down: processes hear of each other through the database, which takes them longer."


# Output


def _json(report: ClusterReport) -> str:
    survey = report.survey
    kind = "sqlite" if survey.server.role == "embedded" else "postgresql"
    document = {
        "database": {
            "kind": kind,
            "path": report.database,
            **msgspec.structs.asdict(survey.server),
            "schema_version": survey.schema.version,
            "pending_migrations": survey.schema.pending,
        },
        "redis": report.redis,
        "work": survey.work,
        "processes": [_process_json(process) for process in survey.processes],
        "problems": report.problems,
    }
    return msgspec.json.encode(document).decode()


def _process_json(process: ProcessRow) -> dict[str, object]:
    return {
        "token": process.token[:TOKEN_CHARACTERS],
        "node": process.node,
        "is_alive": process.is_alive,
        "renewed_seconds_ago": process.renewed_seconds_ago,
        "holds": process.holds,
        **msgspec.structs.asdict(process.about),
    }


def lines(report: ClusterReport) -> Iterator[str]:
    """The report in lines for people."""
    yield f"Database   {visible(report.database)}"
    yield f"           {_server(report.survey)}"
    yield f"Redis      {report.redis}"
    yield from _work(report.survey)
    yield from _table(report.survey.processes)
    for problem in report.problems:
        yield f"! {visible(problem)}"


def _server(survey: Survey) -> str:
    server = survey.server
    kind = "SQLite" if server.role == "embedded" else f"{server.role}, PostgreSQL"
    parts = [f"{kind} {visible(server.version)}", f"answers in {server.latency_ms:.1f} ms"]
    parts.append(f"schema {survey.schema.version}")
    if survey.schema.pending:
        parts.append(f"{len(survey.schema.pending)} migration(s) to be run")
    if server.replicas:
        parts.append(f"{server.replicas} standby(s)")
    if server.replica_lag_seconds is not None:
        parts.append(f"replication {server.replica_lag_seconds:.1f} s behind")
    return ", ".join(parts)


def _work(survey: Survey) -> Iterator[str]:
    work = survey.work
    oldest = "" if work.oldest_waiting_seconds is None else f", the oldest for {work.oldest_waiting_seconds:.1f} s"
    orphaned = f", {work.orphaned} of them by processes that are gone" if work.orphaned else ""
    late = f", the latest by {work.lag_seconds:.1f} s" if work.overdue else ""
    yield f"Held       {work.held} session(s){orphaned}"
    yield f"Backlog    {work.backlog} session(s) wait to be run{oldest}"
    yield f"Timers     {work.overdue} late{late}"
    yield f"Requests   {work.waiting_requests} wait for an answer"


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
