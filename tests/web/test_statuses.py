"""While nothing comes, the page says for what the turn waits, and counts the seconds itself."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.web.looking import Person, Tab
from tests.wire.ai_sdk.harness import LEAPS, Home, Model, Server, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Home:
    return Home(tmp_path_factory.mktemp("leaping"), model).with_leaping_clock()


@pytest.fixture(scope="module")
async def server(home: Home) -> AsyncIterator[Server]:
    async with home.serve(**LEAPS) as running:
        yield running


async def until_silent(tab: Tab, words: str) -> None:
    """The tab follows the turn, in which nothing comes."""
    await tab.say(words)
    await expect(tab.page.locator(".working")).to_contain_text("Working")
    await expect(tab.page.locator("[data-position]")).not_to_have_attribute("data-position", "0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_a_silent_model_is_waited_for_in_a_line_that_goes_when_it_answers(
    browser: Browser, server: Server, model: Model, width: int, scheme: str
) -> None:
    words = f"Think for long, {width} {scheme}"
    model.on(words, says("Here it is."))
    hold = model.hold(words)
    viewport = {"width": width, "height": 800}
    person = await Person.of(browser, server, viewport=viewport, color_scheme=scheme)
    tab = await person.tab()
    await until_silent(tab, words)
    await hold.until_reached()
    line = tab.page.locator(".working")
    server.leap()
    await expect(line).to_have_text(re.compile(r"^\s*Waiting for the model, 1 min \d+ s$"))
    shown = await line.inner_text()
    await expect(line).not_to_have_text(shown)
    await expect(line).to_contain_text("Waiting for the model, 1 min")
    await tab.keep_picture(f"status-{width}-{scheme}")
    hold.release()
    await tab.until_idle()
    await expect(tab.answers).to_contain_text("Here it is.")
    await expect(line).to_have_count(0)
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("Here it is.")
    await expect(line).to_have_count(0)
    await person.leave()


async def test_an_answer_that_stops_in_its_middle_is_waited_for(person: Person, server: Server, model: Model) -> None:
    model.on("Stop in the middle", says("One two three four."))
    hold = model.hold("Stop in the middle", piece=2)
    tab = await person.tab()
    await tab.say("Stop in the middle")
    await hold.until_reached()
    await expect(tab.answers).to_contain_text("One two")
    server.leap()
    await expect(tab.page.locator(".working")).to_contain_text("Waiting for the rest of the answer, 1 min")
    hold.release()
    await tab.until_idle()


async def test_a_tool_that_takes_long_is_named(person: Person, server: Server, model: Model) -> None:
    model.on("Run it for long", calls("exec", command="read line < pipe"), says("Done."))
    tab = await person.tab()
    await tab.say("Run it for long")
    await tab.page.get_by_role("button", name="Allow once").click()
    line = tab.page.locator(".working")
    await expect(line).to_contain_text("Running exec")
    server.leap()
    await expect(line).to_contain_text("Waiting for exec, 1 min")
    await tab.button("Stop").click()
    await tab.until_idle()
