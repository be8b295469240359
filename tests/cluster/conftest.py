"""A database that several machines could share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proof.chaos import audit
from proof.chaos.processes import Fleet
from tests.cluster.world import QUICK, SHORT_LEASE, Cluster, HeldModel
from tests.faults.world import note_beside
from tests.postgres_databases import Databases
from tests.valkey_server import Valkey


@pytest.fixture
def database(tmp_path: Path, postgres_url: str) -> Path:
    """The place of a fault test: a file that does not exist, and the URL of the database."""
    database = tmp_path / "holdfast.db"
    note_beside(database).write_text(postgres_url)
    return database


@pytest.fixture
async def model() -> AsyncIterator[HeldModel]:
    async with HeldModel() as server:
        yield server


@pytest.fixture
async def audited_url(postgres_databases: Databases) -> str:
    """A database that notes who writes what. It is not used again."""
    url = postgres_databases.server.url(await postgres_databases.fresh())
    await audit.run(url, audit.TRIGGERS)
    return url


@pytest.fixture
def cluster(tmp_path: Path, audited_url: str, model: HeldModel, valkey: Valkey) -> Cluster:
    settings = {**QUICK, **SHORT_LEASE}
    fleet = Fleet(tmp_path, database=audited_url, model_url=model.url, redis=valkey.url, settings=settings)
    return Cluster(fleet, model)
