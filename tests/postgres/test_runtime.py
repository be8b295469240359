"""The whole runtime on PostgreSQL: chosen by the URL, shared by processes, each session on the machine of its files."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.ids import Key
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.store.postgres.store import PostgresStore
from proof.postgres_server import PostgresServer
from tests.postgres.pooler import Pooler
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

PASSWORD = "s3cret-of-the-database"


def answering() -> ScriptedModel:
    return ScriptedModel(Script((Rule((Reply(text="Hello to you."),)),)))


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(folder), "HOLDFAST_DATA_DIR": str(folder), "PATH": "/usr/bin:/bin", **more}


async def test_turn_sent_to_one_process_can_run_in_another(postgres_url: str, tmp_path: Path) -> None:
    async with (
        Runtime(database=postgres_url, model=answering(), environ=environ(tmp_path / "front"), work=False) as front,
        Runtime(database=postgres_url, model=answering(), environ=environ(tmp_path / "worker")) as worker,
    ):
        assert isinstance(front.store, PostgresStore)
        turn = await (await front.session()).run("Hello")
        assert (turn.reason, bool(turn.text)) == ("completed", True)
        assert front.shell.desk.host != worker.shell.desk.host, "their commands are two machines'"


async def test_runtime_works_with_a_pooler_url_alone(
    postgres_databases: Databases, postgres_url: str, tmp_path: Path
) -> None:
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    async with Pooler(postgres_databases.server.socket, size=5) as pooler:
        told = environ(tmp_path, HOLDFAST_DATABASE=pooler.url(name), HOLDFAST_DATABASE_POOLED="on")
        async with Runtime(model=answering(), environ=told) as runtime:
            turn = await (await runtime.session()).run("Hello")
            assert turn.reason == "completed"


async def test_session_stays_on_its_machine_unless_files_are_shared(postgres_url: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    told = environ(tmp_path, HOLDFAST_NODE="this-one", HOLDFAST_SHARED_DIRECTORIES=str(shared))
    async with Runtime(database=postgres_url, model="demo", environ=told, work=False) as runtime:
        for directory, host in (
            (None, None),
            (tmp_path / "work", "this-one"),
            (shared, None),
            (shared / "deep", None),
            (tmp_path / "shared-not", "this-one"),
        ):
            made = await runtime.session(working_directory=str(directory) if directory else None)
            row = await runtime.store.row(made.key)
            assert row is not None
            assert row.host == host, directory
            copy = await runtime.operations.fork(made.key, before=None, title="A copy")
            row = await runtime.store.row(Key(made.key.owner, copy))
            assert row is not None
            assert row.host == host, directory


async def test_session_on_sqlite_is_bound_to_no_machine(tmp_path: Path) -> None:
    async with Runtime(model="demo", environ=environ(tmp_path), work=False) as runtime:
        made = await runtime.session(working_directory=str(tmp_path))
        row = await runtime.store.row(made.key)
        assert row is not None
        assert row.host is None


def test_missing_driver_is_reported_with_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from holdfast.cli.main import main\n"
        f"sys.argv = ['holdfast', 'sessions', 'list', '--database', 'postgresql://ann:{PASSWORD}@there/x']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0
    assert "pip install 'holdfast[cluster]'" in done.stderr
    assert "[store_needs_extra]" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_unreachable_server_is_reported_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://ann:{PASSWORD}@127.0.0.1:1/x"
    words = ("sessions", "list", "--database", url)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], env=environ(tmp_path), capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "PostgreSQL can't be reached" in done.stderr
    assert "[store_unreachable]" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD in path.read_text("utf-8", "replace")
    ]


def test_sqlite_runtime_does_not_load_the_postgresql_driver(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\nfrom holdfast.app import Runtime\n"
        "async def main():\n    async with Runtime(model='demo', work=False): pass\n"
        "asyncio.run(main())\nprint('asyncpg' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


async def test_oldest_installed_postgresql_release_works(tmp_path: Path) -> None:
    with PostgresServer(version=16) as server:
        async with Runtime(database=server.url(), model=answering(), environ=environ(tmp_path)) as runtime:
            turn = await (await runtime.session()).run("Hello")
            assert turn.reason == "completed"
