"""A real server that most tests share, a server of a test's own for whoever breaks it, and a key for each person."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.world import Model, Place, Server


@pytest.fixture(scope="module")
async def shared_model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, shared_model: Model) -> AsyncIterator[Server]:
    async with Place(tmp_path_factory.mktemp("client"), shared_model).serve() as running:
        yield running


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture
def place(tmp_path: Path, model: Model) -> Place:
    return Place(tmp_path, model)
