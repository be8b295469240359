"""The same machine on PostgreSQL, where a death is noticed only when the lease is over."""

import asyncio
from contextlib import ExitStack

from hypothesis import HealthCheck, settings

from proof.postgres_server import PostgresServer
from tests.machine.test_machine import PublicOperations
from tests.postgres_databases import Databases

_started = ExitStack()
_databases: list[Databases] = []


def setup_module() -> None:
    """One server for all examples, which know no fixtures."""
    _databases.append(Databases(_started.enter_context(PostgresServer())))


def teardown_module() -> None:
    _databases.clear()
    _started.close()


class PublicOperationsOnPostgresql(PublicOperations):
    def __init__(self) -> None:
        self._name = asyncio.run(_databases[0].borrow())
        super().__init__()

    def _database(self) -> str:
        return _databases[0].server.url(self._name)

    def teardown(self) -> None:
        super().teardown()
        _databases[0].give_back(self._name)


TestPublicOperationsOnPostgresql = PublicOperationsOnPostgresql.TestCase
TestPublicOperationsOnPostgresql.settings = settings(
    max_examples=3,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
