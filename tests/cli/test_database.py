"""`holdfast db`: on a file and on a server alike, what is there is told, brought forward and copied; and no password is
ever shown."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.store.postgres import migrations as postgres_migrations
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.dump import without_secrets
from holdfast.store.sqlite import migrations as sqlite_migrations
from holdfast.store.sqlite.connections import connect, create_if_missing
from proof.postgres_server import PostgresServer
from tests.cli.databases import PROGRAMS, fill, go_on, typed
from tests.cli.processes import Done, Place
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

PASSWORD = "s3cret-of-the-database"


@pytest.fixture
async def empty(postgres_databases: Databases) -> str:
    return postgres_databases.server.url(await postgres_databases.fresh(is_empty=True))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of one that holds nothing yet, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'there' / 'shared.db'}"
    url: str = request.getfixturevalue("empty")
    return url


async def db(place: Place, *words: str, database: str, **environ: str) -> Done:
    return await typed("db", *words, "--database", database, "--data-dir", str(place.data), **environ)


def names_of(database: str) -> tuple[str, ...]:
    return sqlite_migrations.NAMES if database.startswith("sqlite") else postgres_migrations.NAMES


async def bring_forward_to(database: str, version: int) -> None:
    """As an older release left it."""
    if database.startswith("sqlite"):
        path = Path(database.removeprefix("sqlite:///"))
        create_if_missing(path)
        with contextlib.closing(connect(path)) as file:
            sqlite_migrations.migrate(file, path, sqlite_migrations.MIGRATIONS[:version])
    else:
        await postgres_migrations.migrate(DatabaseAddress(database), postgres_migrations.MIGRATIONS[:version])


async def begin_a_process_of_before(database: str) -> None:
    """One of a release that says nothing of itself."""
    if database.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as file:
            file.execute("INSERT INTO process (token, node, boot_id, expires_at) VALUES ('t', 'old', 'b', 1)")
            file.commit()
        return
    server = await asyncpg.connect(database)
    await server.execute("INSERT INTO holdfast.process VALUES ('t', 'old', clock_timestamp(), clock_timestamp())")
    await server.close()


async def test_migrating_says_what_was_run_and_checking_changes_nothing(place: Place, database: str) -> None:
    names = names_of(database)
    for _ in range(2):
        checked = await db(place, "migrate", "--check", database=database)
        assert checked.code == 1
        assert all(name in checked.out for name in names)
    ran = await db(place, "migrate", database=database)
    assert (ran.code, ran.err) == (0, "")
    assert f"Ran {', '.join(names)}." in ran.out
    again = await db(place, "migrate", database=database)
    assert (again.code, "Nothing to migrate" in again.out) == (0, True)
    assert (await db(place, "migrate", "--check", database=database)).code == 0


async def test_only_what_is_missing_is_run(place: Place, database: str) -> None:
    *before, last = names_of(database)
    await bring_forward_to(database, len(before))
    status = json.loads((await db(place, "status", "--json", database=database)).out)
    assert (status["schema_version"], status["pending_migrations"]) == (len(before), [last])
    await begin_a_process_of_before(database)
    cluster = json.loads((await typed("cluster", "status", "--json", "--database", database)).out)
    assert cluster["database"]["pending_migrations"] == [last]
    assert [(it["node"], it["role"], it["version"]) for it in cluster["processes"]] == [("old", "", "")]
    assert f"Ran {last}.\n" in (await db(place, "migrate", database=database)).out


async def test_status_tells_what_is_there_and_what_waits(place: Place, database: str) -> None:
    nothing = json.loads((await db(place, "status", "--json", database=database)).out)
    assert (nothing["schema_version"], nothing["sessions"], nothing["bytes"]) == (0, 0, 0)
    await fill(database, place)
    found = json.loads((await db(place, "status", "--json", database=database)).out)
    assert found["kind"] == ("sqlite" if database.startswith("sqlite") else "postgresql")
    assert (found["sessions"], found["unfinished_sessions"], found["waiting_requests"]) == (2, 2, 1)
    assert found["backlog"] == 1
    assert found["oldest_waiting_seconds"] >= 0
    assert (found["events"] > 5, found["bytes"] > 10_000, found["pending_migrations"]) == (True, True, [])
    people = await db(place, "status", database=database)
    assert people.code == 0
    assert "waiting requests         1\n" in people.out


async def test_looking_at_a_file_that_is_not_there_does_not_make_it(place: Place) -> None:
    file = place.work / "nowhere" / "x.db"
    for words in (("db", "status"), ("db", "migrate", "--check"), ("cluster", "status")):
        await typed(*words, "--database", f"sqlite:///{file}")
    backup = await db(place, "backup", str(place.work / "copy.db"), database=f"sqlite:///{file}")
    assert (backup.code, "[store_not_found]" in backup.err) == (1, True)
    assert not file.parent.exists()


async def test_a_backup_of_a_file_leaves_its_schema_as_it_is(place: Place) -> None:
    """Before an upgrade it is the old one that somebody may have to come back to."""
    database = f"sqlite:///{place.work / 'old.db'}"
    await bring_forward_to(database, 8)
    assert (await db(place, "backup", str(place.work / "copy.db"), database=database)).code == 0
    for name in ("old.db", "copy.db"):
        with contextlib.closing(sqlite3.connect(place.work / name)) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (8,)


# On PostgreSQL


async def test_a_dump_that_is_restored_elsewhere_goes_on_where_it_was(
    place: Place, postgres_url: str, postgres_databases: Databases
) -> None:
    await fill(postgres_url, place)
    backup = await db(place, "backup", str(place.work / "monday.dump"), database=postgres_url, PATH=PROGRAMS)
    assert backup.code == 0, backup.err
    file = place.work / "monday.dump"
    assert f"({file.stat().st_size:,} bytes)" in backup.out
    assert file.stat().st_mode & 0o077 == 0
    restored = await postgres_databases.fresh(is_empty=True)
    postgres_databases.server.run("pg_restore", "--no-owner", "--exit-on-error", "--dbname", restored, str(file))
    url = postgres_databases.server.url(restored)
    before, after = [(await db(place, "status", "--json", database=it)).out for it in (postgres_url, url)]
    for name in ("sessions", "events", "backlog", "waiting_requests", "schema_version"):
        assert json.loads(before)[name] == json.loads(after)[name], name
    async with asyncio.timeout(60):
        assert await go_on(url, place) == ["completed", "completed"]


async def test_a_dump_never_replaces_a_file_and_leaves_nothing_half_done(place: Place, postgres_url: str) -> None:
    there = place.work / "there"
    there.write_text("mine")
    refused = await db(place, "backup", str(there), database=postgres_url, PATH=PROGRAMS)
    assert (refused.code, "exists already" in refused.err) == (1, True)
    nowhere = await db(place, "backup", str(place.work / "no" / "folder"), database=postgres_url, PATH=PROGRAMS)
    assert (nowhere.code, "[file_not_usable]" in nowhere.err) == (1, True)
    broken = place.work / "bin"
    broken.mkdir()
    (broken / "pg_dump").write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    (broken / "pg_dump").chmod(0o755)
    failed = await db(place, "backup", str(place.work / "new"), database=postgres_url, PATH=f"{broken}:{PROGRAMS}")
    assert (failed.code, "It said: it broke" in failed.err) == (1, True)
    assert (there.read_text(), sorted(path.name for path in place.work.iterdir())) == ("mine", ["bin", "there"])


async def test_without_pg_dump_the_error_says_what_to_do(place: Place, postgres_url: str) -> None:
    done = await db(place, "backup", str(place.work / "new"), database=postgres_url, PATH=str(place.work))
    assert (done.code, "[store_backed_up_elsewhere]" in done.err) == (1, True)
    assert "pg_dump --format=custom --schema=holdfast" in done.err


async def test_a_foreign_or_too_new_database_is_refused_and_not_changed(place: Place, empty: str) -> None:
    server = await asyncpg.connect(empty)
    await server.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.session (mine text)")
    for words in (("status",), ("migrate",), ("migrate", "--check"), ("backup", str(place.work / "new"))):
        done = await db(place, *words, database=empty, PATH=PROGRAMS)
        assert (done.code, "[store_not_a_database]" in done.err) == (1, True), words
    await server.execute("DROP SCHEMA holdfast CASCADE")
    assert (
        "[store_not_found]" in (await db(place, "backup", str(place.work / "new"), database=empty, PATH=PROGRAMS)).err
    )
    await bring_forward_to(empty, len(postgres_migrations.MIGRATIONS))
    await server.execute("INSERT INTO holdfast.migration (version) VALUES (999)")
    for words in (("status",), ("migrate",), ("backup", str(place.work / "new"))):
        done = await db(place, *words, database=empty, PATH=PROGRAMS)
        assert (done.code, "[store_newer]" in done.err) == (1, True), words
    await server.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks for a password."""
    server = PostgresServer(tcp=True)
    with contextlib.ExitStack() as ending:
        ending.callback(server.remove)
        hba = server.data / "pg_hba.conf"
        hba.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        server.start()
        server.run("psql", "--command", f"CREATE ROLE ann LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        server.run("psql", "--command", "CREATE ROLE onlooker LOGIN")
        yield server


async def test_a_password_opens_the_database_and_is_shown_nowhere(place: Place, guarded: PostgresServer) -> None:
    url = guarded.tcp_url().replace("postgres@", f"ann:{PASSWORD}@")
    said = ""
    for words in (("migrate",), ("status",), ("backup", str(place.work / "copy.dump"))):
        done = await db(place, *words, database=url, PATH=PROGRAMS)
        assert done.code == 0, done.err
        said += done.out + done.err
    cluster = await typed("cluster", "status", "--database", url)
    wrong = await db(place, "status", database=url.replace(PASSWORD, f"not-{PASSWORD}"))
    assert (wrong.code, "[store_refused]" in wrong.err) == (1, True)
    nobody = await db(place, "status", database=guarded.url().replace("//postgres@", "//onlooker@"))
    assert "SELECT on all tables" in nobody.err
    away = await db(place, "status", database=f"postgresql://ann:{PASSWORD}@127.0.0.1:1/x")
    assert (away.code, "[store_unreachable]" in away.err) == (1, True)
    everything = (said, cluster.out, cluster.err, wrong.out, wrong.err, away.out, away.err)
    assert not [told for told in everything if PASSWORD in told]
    files = [path for path in place.data.rglob("*") if path.is_file()]
    assert not [path for path in files if PASSWORD in path.read_text("utf-8", "replace")]


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://ann:p%40ss@db:5432/x?sslmode=require", "postgresql://ann@db:5432/x?sslmode=require", "p@ss"),
        ("postgresql://ann@db/x?password=it", "postgresql://ann@db/x", "it"),
        ("postgres://ann@/x?host=%2Ftmp%2Fpg&port=5433", "postgres://ann@/x?host=%2Ftmp%2Fpg&port=5433", ""),
        ("postgresql://ann:it@one:1,two:2/x", "postgresql://ann@one:1,two:2/x", "it"),
        ("postgresql://db/x", "postgresql://db/x", ""),
    ],
)
def test_a_url_on_a_command_line_has_no_password(url: str, shown: str, password: str) -> None:
    assert without_secrets(url) == (shown, {"PGPASSWORD": password} if password else {})
