"""Fixtures for all tests: asyncio, and an environment without the developer's own settings, keys and data."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres_databases import Databases
    from tests.valkey_server import Valkey

# Failures of the conformance suite are explained as those of any test; to be said before anything imports it.
pytest.register_assert_rewrite("holdfast.testing.store_conformance")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More test processes than cores: many tests wait for a lease to end or a process to die, and need no core then."""
    cores = os.cpu_count() or 1
    return cores + max(1, cores // 2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints each reason for which tests could not run here, once."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(where[2]) for where in skipped if isinstance(where, tuple))
    for reason, count in sorted(reasons.items()):
        if "NOT TESTED" in reason:
            terminalreporter.write_line(f"{count} x {reason.removeprefix('Skipped: ')}", yellow=True)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _plain_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Subprocesses inherit it too."""
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith("HOLDFAST_") or name.endswith(("_API_KEY", "_API_TOKEN", "_BASE_URL")):
                environment.delenv(name)
        environment.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The file of a database of the test's own, which is not there yet."""
    return tmp_path / "holdfast.db"


@pytest.fixture(scope="session")
def postgres_databases() -> "Iterator[Databases]":
    """One PostgreSQL for a test process, started when it is first asked for."""
    from proof.postgres_server import PostgresServer
    from tests.postgres_databases import Databases

    with PostgresServer() as server:
        yield Databases(server)


@pytest.fixture
async def postgres_url(postgres_databases: "Databases") -> AsyncIterator[str]:
    """A database with Holdfast's tables, and nothing in them."""
    name = await postgres_databases.borrow()
    yield postgres_databases.server.url(name)
    postgres_databases.give_back(name)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Valkey]":
    """One Valkey for a test process, started when it is first asked for. Whoever breaks one takes `own_valkey`."""
    from tests.valkey_server import valkey_server

    with valkey_server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Valkey]":
    """To be killed, held up and started again."""
    from tests.valkey_server import valkey_server

    with valkey_server(tmp_path_factory.mktemp("own-valkey")) as server:
        yield server
