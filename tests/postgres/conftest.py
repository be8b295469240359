"""Stores on PostgreSQL, other processes at the same database, and a server that a test may break."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.postgres.store import PostgresStore
from proof.postgres_server import PostgresServer
from tests.postgres.others import Other

ANOTHER_PROCESS = Path(__file__).with_name("another_process.py")


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_url, node="here")
    yield store
    await store.close()


@pytest.fixture
def start() -> Iterator[Callable[[str], Other]]:
    """Starts other processes at a database; those that still run at the end are killed."""
    with contextlib.ExitStack() as running:

        def start_one(url: str) -> Other:
            process = subprocess.Popen(
                [sys.executable, str(ANOTHER_PROCESS), url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            other = Other(process)
            running.callback(other.end)
            return other

        yield start_one


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server for one file of tests that stop it."""
    with PostgresServer() as server:
        yield server
