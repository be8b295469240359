"""A runtime, its model and a client shared by the tests of a file; tests that kill a runtime start their own."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from copilot import CopilotClient

from tests.wire.copilot.harness import Home, Model, Pipe, Server, connected, last_answers_race


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[Model]:
    with last_answers_race():
        async with Model() as server:
            yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Home:
    return Home(tmp_path_factory.mktemp("copilot"), model)


@pytest.fixture
def own_home(tmp_path: Path, model: Model) -> Home:
    """A home for a test that ends its runtime or starts several."""
    return Home(tmp_path, model)


@pytest.fixture(scope="module")
async def server(home: Home) -> AsyncIterator[Server]:
    async with home.serve() as running:
        yield running


@pytest.fixture(scope="module")
async def client(server: Server) -> AsyncIterator[CopilotClient]:
    async with connected(server.client()) as one:
        yield one


@pytest.fixture
async def another(server: Server) -> AsyncIterator[CopilotClient]:
    """A second client of the same runtime."""
    async with connected(server.client()) as one:
        yield one


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], Pipe]]:
    """Makes named pipes for the commands of a test."""
    made: list[Pipe] = []

    def make(name: str) -> Pipe:
        made.append(Pipe(tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.close()
