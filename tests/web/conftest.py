"""One Chromium for a test process; a server and its model for each file of tests; a person with tabs for each test."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.http.world import Client
from tests.web import chromium, sources
from tests.web.looking import Person
from tests.wire.ai_sdk.harness import Home, Model, Server


@pytest.fixture(scope="session")
def chromium_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    def say(text: str) -> None:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    try:
        path = chromium.found_or_installed(say)
    except chromium.NoChromium as missing:
        pytest.skip(f"THE PAGE IS NOT TESTED: {missing}")
    with chromium.running(path, tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture(scope="module")
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(chromium_address)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Home:
    return Home(tmp_path_factory.mktemp("web"), model)


@pytest.fixture(scope="module")
async def server(home: Home) -> AsyncIterator[Server]:
    async with home.serve() as running:
        yield running


@pytest.fixture
def own_home(tmp_path: Path, model: Model) -> Home:
    """For a test that ends its server, or needs one of its own making."""
    return Home(tmp_path, model)


@pytest.fixture
async def person(browser: Browser, server: Server) -> AsyncIterator[Person]:
    person = await Person.of(browser, server)
    yield person
    await person.leave()


@pytest.fixture
async def client(person: Person) -> AsyncIterator[Client]:
    async with person.client() as one:
        yield one


@pytest.fixture(scope="module")
async def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tools that build the page and open it."""
    kept = getattr(request.config, "cache", None)  # pytest may be told to keep none
    cache: Path = kept.mkdir("page-packages") if kept else tmp_path_factory.mktemp("page-packages")
    return await sources.packages(cache)
