"""`holdfast cluster status`: who works on a database and what waits, seen by somebody who changes nothing."""

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.app import Runtime
from holdfast.cli.cluster import problems
from holdfast.models.demo import demo_model
from holdfast.store.survey import DatabaseServer, ProcessDescription, ProcessRow, Schema, Survey, Work
from holdfast.version import __version__
from tests.cli.databases import environ, fill, typed
from tests.cli.processes import Done, Piped, Place
from tests.valkey_server import Valkey

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of one of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


async def status(place: Place, database: str, *words: str) -> Done:
    return await typed("cluster", "status", *words, "--database", database, "--data-dir", str(place.data))


async def seen(place: Place, database: str, *words: str) -> Any:
    done = await status(place, database, "--json", *words)
    assert done.err == "", done
    return json.loads(done.out)


@contextlib.asynccontextmanager
async def worker(place: Place, database: str) -> AsyncIterator[Piped]:
    async with place.piped("worker", "--database", database, "--concurrency", "7", "--log-to", "stderr") as running:
        await running.until("End it with Ctrl-C")
        yield running


async def rows_of(database: str) -> list[Any]:
    """Everything that a survey could have changed, without the heartbeats of processes."""
    if database.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as file:
            return [file.execute(f"SELECT {what}").fetchall() for what in ("token FROM process", "* FROM session")]
    db = await asyncpg.connect(database)
    try:
        return [await db.fetch(f"SELECT {what}") for what in ("token FROM holdfast.process", "* FROM holdfast.session")]
    finally:
        await db.close()


async def test_a_worker_is_seen_with_what_it_says_of_itself(place: Place, database: str) -> None:
    async with worker(place, database) as running:
        found = await seen(place, database, "--check")
        (process,) = found["processes"]
        assert (process["role"], process["version"], process["max_sessions"]) == ("worker", __version__, 7)
        assert (process["is_alive"], process["holds"], len(process["token"])) == (True, 0, 8)
        assert process["renewed_seconds_ago"] >= 0
        assert process["started_at"] > 1_700_000_000_000
        assert (found["problems"], found["redis"]) == ([], "not set")
        people = await status(place, database, "--check")
        assert people.code == 0
        assert "worker" in people.out
        assert "0 of 7" in people.out
        running.terminate()
        await running.ended(0)
    assert (await seen(place, database))["processes"] == []


async def test_a_cluster_without_workers_is_a_problem(place: Place, database: str) -> None:
    await fill(database, place)
    async with Runtime(database=database, model=demo_model(), environ=environ(place.data), work=False, role="serve"):
        before = await rows_of(database)
        done = await status(place, database, "--check", "--max-wait", "0")
        assert done.code == 1
        assert "! No process runs sessions" in done.out
        assert "! A session has waited" in done.out
        assert "Backlog    1 session(s) wait to be run" in done.out
        assert "Requests   1 wait for an answer" in done.out
        assert await rows_of(database) == before, "a look changed something"
        (process,) = (await seen(place, database))["processes"]
        assert (process["role"], process["max_sessions"]) == ("serve", 0)


async def test_a_session_held_by_a_killed_process_is_counted_as_orphaned(place: Place) -> None:
    database = f"sqlite:///{place.work / 'shared.db'}"
    async with worker(place, database) as running:
        await running.kill()
    with contextlib.closing(sqlite3.connect(place.work / "shared.db")) as file:
        (token,) = file.execute("SELECT token FROM process").fetchone()
        file.execute(
            "INSERT INTO session (owner, id, lease_holder, runnable, status, created_at, updated_at)"
            " VALUES ('local', 'held', ?, 1, 'running', 1, 1)",
            (token,),
        )
        file.commit()
    found = await seen(place, database)
    (process,) = found["processes"]
    assert (process["is_alive"], process["holds"]) == (False, 1)
    assert (found["work"]["held"], found["work"]["orphaned"]) == (1, 1)
    people = (await status(place, database)).out
    assert "1 session(s), 1 of them by processes that are gone" in people
    assert "gone" in people


async def test_redis_is_asked_whether_it_is_there(place: Place, own_valkey: Valkey) -> None:
    database = f"sqlite:///{place.work / 'shared.db'}"
    assert (await seen(place, database, "--redis", own_valkey.url))["redis"] == "up"
    own_valkey.stop()
    found = await seen(place, database, "--redis", own_valkey.url)
    assert found["redis"] == "down"
    assert [problem for problem in found["problems"] if "Redis is down" in problem]


async def test_watching_looks_again_until_it_is_ended(place: Place, postgres_url: str) -> None:
    async with place.piped("cluster", "status", "--watch", "--database", postgres_url) as watching:
        await watching.until("Database")
        watching.said = ""
        await watching.until("Database")
        watching.terminate()
        await watching.ended(0)


async def test_watching_and_checking_are_two_things(place: Place) -> None:
    done = await status(place, f"sqlite:///{place.work / 'x.db'}", "--watch", "--check")
    assert (done.code, "[usage]" in done.err) == (2, True)


def survey(*, role: str = "primary", process: ProcessRow | None = None, work: Work | None = None) -> Survey:
    is_writable = role != "standby"
    server = DatabaseServer(version="18", role=role, is_writable=is_writable, latency_ms=1)  # type: ignore[arg-type]
    schema = Schema(version=2, pending=())
    return Survey(server=server, schema=schema, work=work or Work(), processes=(process,) if process else ())


def process(*, role: str = "worker", alive: bool = True, most: int = 5) -> ProcessRow:
    about = ProcessDescription(role=role, max_sessions=most)  # type: ignore[arg-type]
    return ProcessRow(token="t", node="n", is_alive=alive, renewed_seconds_ago=1, holds=0, about=about)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (survey(process=process()), ""),
        (survey(process=process(role="", most=0)), ""),
        (survey(process=process(alive=False)), "No process runs sessions"),
        (survey(process=process(role="serve", most=0)), "No process runs sessions"),
        (survey(process=process(), role="standby"), "is a standby"),
        (survey(process=process(), work=Work(oldest_waiting_seconds=9.0)), ""),
        (survey(process=process(), work=Work(oldest_waiting_seconds=11.0)), "has waited for 11 s"),
        (survey(process=process(), work=Work(overdue=1, lag_seconds=11.0)), "A timer is 11 s late"),
    ],
)
def test_each_thing_that_is_wrong_has_a_sentence(found: Survey, wrong: str) -> None:
    told = list(problems(found, "up", max_wait=10))
    assert len(told) == bool(wrong), told
    assert all(wrong in problem for problem in told)
