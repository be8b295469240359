"""The usage: people see how much is used, admins see pictures of what was spent; a turn without money goes on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script
from tests.http.test_identity import made_key
from tests.http.world import Model as PricedModel
from tests.http.world import Place
from tests.http.world import Server as OwnServer
from tests.web.looking import Person, Tab
from tests.web.month import OWNERS, write_month
from tests.web.test_looks import PHONE, findings, overflows
from tests.web.test_looks import axe as axe
from tests.web.test_signing_in import sign_in
from tests.wire.ai_sdk.harness import Server

pytestmark = pytest.mark.anyio

USAGE = TokenUsage(input_tokens=10, output_tokens=2, cost_microdollars=750_000)
FACTS = """
["openai/scripted"]
max_output = 1000
price = { input = 1, output = 1 }
["openai/gpt-5.1"]
price = { input = 1.25, output = 10, cache_read = 0.125 }
"""
LIMITS = {"HOLDFAST_BUDGET_DAY": "1", "HOLDFAST_BUDGET_WEEK": "4", "HOLDFAST_BUDGET_TIERS": "team=1"}


@pytest.fixture(scope="module")
async def month(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[OwnServer, dict[str, str]]]:
    """A server with keys, a month of calls, a model whose answers cost, and limits."""
    folder = tmp_path_factory.mktemp("month")
    facts = folder / "models.toml"
    facts.write_text(FACTS, encoding="utf-8")
    async with PricedModel(Script(rules=(Rule(replies=(Reply(text="Here it is.", usage=USAGE),)),))) as model:
        place = Place(folder, model)
        keys = {"root": await made_key(place, "root", "root", "admin"), "zoe": await made_key(place, "zoe", "zoe")}
        await write_month(place.data / "holdfast.db")
        await place.run("budgets", "set", "zoe", "--tier", "team", **LIMITS)
        async with place.serve("--auth", "keys", HOLDFAST_MODELS=str(facts), **LIMITS) as server:  # type: ignore[arg-type]
            yield server, keys


async def at_usage(browser: Browser, server: Server, own: OwnServer, key: str, **options: Any) -> Tab:
    given = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", "color_scheme": "light"}
    person = Person(await browser.new_context(**{**given, **options}), server, own.url)
    person.expects("401")
    tab = await person.tab_at("")
    await sign_in(tab, key)
    await expect(tab.box).to_be_visible()
    await tab.page.goto(f"{own.url}/#/usage")
    await expect(tab.page.locator(".usage")).to_have_attribute("aria-busy", "false")
    return tab


async def is_as_wide_as_its_place(tab: Tab) -> bool:
    """Whether nothing needs scrolling sideways."""
    return bool(await tab.page.locator(".usage").evaluate("(found) => found.scrollWidth <= found.clientWidth"))


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_admin_sees_what_was_spent_on_what_and_who_is_near_a_limit(
    browser: Browser, server: Server, month: tuple[OwnServer, dict[str, str]], axe: str, size: str, scheme: str
) -> None:
    own, keys = month
    options = {"color_scheme": scheme, **(PHONE if size == "phone" else {})}
    tab = await at_usage(browser, server, own, keys["root"], **options)
    charts = tab.page.locator(".chart")
    await expect(charts).to_have_count(4)
    await expect(charts.nth(0).locator("li")).to_have_count(30)
    await expect(charts.nth(1).locator("li")).to_have_count(4)
    await expect(charts.nth(2).locator("li")).to_have_count(9)
    await expect(charts.nth(2).locator("li").last).to_contain_text("All others")
    await expect(charts.nth(3).locator("li").first).to_contain_text("100.0 %")
    names = await charts.nth(2).locator(".bar-name").all_inner_texts()
    assert set(names[:-1]) < set(OWNERS)
    await tab.page.mouse.move(0, 0)
    await tab.keep_picture(f"usage-{size}-{scheme}")
    assert await overflows(tab) == []
    assert await is_as_wide_as_its_place(tab)
    assert await findings(tab, axe) == []
    await tab.page.locator(".chart").last.scroll_into_view_if_needed()
    await tab.keep_picture(f"usage-end-{size}-{scheme}")
    await tab.person.leave()


async def test_a_person_sees_percentages_and_goes_on_when_there_is_more(
    browser: Browser, server: Server, month: tuple[OwnServer, dict[str, str]], axe: str
) -> None:
    own, keys = month
    tab = await at_usage(browser, server, own, keys["zoe"])
    await expect(tab.page.locator(".gauge-figure")).to_have_text(["0.0 %", "0.0 %"])
    await expect(tab.page.locator(".chat-header .tag")).to_have_text("team")
    await tab.button("New session").click()
    for text, turns in (("one", 1), ("two", 2)):
        await tab.say(text)
        await expect(tab.answers).to_have_count(turns)
    await expect(tab.button("Go on")).to_have_count(0)
    await tab.say("three")
    await expect(tab.log.get_by_role("alert")).to_contain_text("budget is used up")
    assert "$" not in await tab.page.inner_text("body")
    await tab.keep_picture("over-budget")
    await tab.page.goto(f"{own.url}/#/usage")
    await expect(tab.page.locator(".gauge-figure")).to_have_text(["100.0 %", "37.5 %"])
    await expect(tab.page.locator(".gauge").first).to_contain_text("Starts again")
    assert "$" not in await tab.page.inner_text("body")
    assert await findings(tab, axe) == []
    await tab.keep_picture("usage-of-a-person")
    await tab.page.set_viewport_size({"width": 390, "height": 844})
    assert await overflows(tab) == []
    assert await is_as_wide_as_its_place(tab)
    await tab.page.set_viewport_size({"width": 1280, "height": 900})
    async with own.client(keys["root"]) as root:
        await root.put("/v1/owners/zoe/budget", json={"day_microdollars": None})
    await tab.page.go_back()
    await tab.button("Go on").click()
    await expect(tab.answers).to_have_count(3)
    await expect(tab.messages.last).to_contain_text("Please go on.")
    await expect(tab.button("Go on")).to_have_count(0)
    await tab.person.leave()
