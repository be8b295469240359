"""A server, its model and a client for each file of tests; whoever needs to break one has one of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.world import Client, Model, Place, Server


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory, model: Model) -> AsyncIterator[Server]:
    async with Place(tmp_path_factory.mktemp("http"), model).serve() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with server.client() as one:
        yield one


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """For a test that has its own server, or ends it."""
    return Place(tmp_path)


@pytest.fixture
async def own_model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture
def own_place(tmp_path: Path, own_model: Model) -> Place:
    return Place(tmp_path, own_model)
