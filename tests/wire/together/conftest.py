"""One database with both servers for all tests of this folder; who kills one has a place of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.ai_sdk.harness import Model
from tests.wire.ai_sdk.node_clients import Node, installed
from tests.wire.copilot.harness import last_answers_race
from tests.wire.together.world import Place, World


@pytest.fixture(scope="package")
async def model() -> AsyncIterator[Model]:
    with last_answers_race():
        async with Model() as server:
            yield server


@pytest.fixture(scope="package")
async def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Path | str":
    """The `ai` package, or why it can't be had here."""
    kept = getattr(request.config, "cache", None)  # pytest may be told to keep none
    cache: Path = kept.mkdir("ai-sdk-clients") if kept else tmp_path_factory.mktemp("ai-sdk-clients")
    try:
        return await installed(cache)
    except pytest.skip.Exception as error:
        return str(error)


@pytest.fixture(scope="package")
async def node(packages: "Path | str") -> "AsyncIterator[Node | None]":
    if isinstance(packages, str):
        yield None
        return
    async with Node.running(packages) as running:
        yield running


@pytest.fixture(scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, model: Model, node: Node | None) -> AsyncIterator[World]:
    place = Place(tmp_path_factory.mktemp("together"), model, node)
    async with place.serve() as http, place.serve_copilot() as copilot:
        yield World(place, http, copilot)


@pytest.fixture
def own_place(tmp_path: Path, model: Model, node: Node | None) -> Place:
    """For a test that kills one of its servers."""
    return Place(tmp_path, model, node)
