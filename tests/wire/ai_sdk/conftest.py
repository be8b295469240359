"""A server and its model for each file of tests; whoever needs to break one has one of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.ai_sdk.harness import Home, Model, Server, Talk
from tests.wire.ai_sdk.node_clients import installed


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory, model: Model) -> AsyncIterator[Server]:
    async with Home(tmp_path_factory.mktemp("ai-sdk"), model).serve() as running:
        yield running


@pytest.fixture
async def talk(server: Server) -> AsyncIterator[Talk]:
    async with Talk(server) as one:
        yield one


@pytest.fixture
def own_home(tmp_path: Path, model: Model) -> Home:
    """For a test that ends its server, or needs one of its own making."""
    return Home(tmp_path, model)


@pytest.fixture(scope="module")
async def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `ai` package, of several releases."""
    kept = getattr(request.config, "cache", None)  # pytest may be told to keep none
    cache: Path = kept.mkdir("ai-sdk-clients") if kept else tmp_path_factory.mktemp("ai-sdk-clients")
    return await installed(cache)
