"""For everybody: small screens, light and dark, less motion, screen readers, keyboards."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.http.world import Client
from tests.web.looking import Person, Tab
from tests.wire.ai_sdk.harness import Model, Server, calls, says

pytestmark = pytest.mark.anyio

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}

WIDE = "| a | b | c | d | e | f | g |\n|---|---|---|---|---|---|---|\n" + "| a long cell |" * 7 + "\n\n"
WIDE += "```\n" + "a line of code that is much too long for a phone " * 4 + "\n```\n\n" + "anunbrokenword" * 20
WIDE += "\n\n<https://example.com/" + "a-long-path/" * 20 + ">"


@pytest.fixture(autouse=True)
def script(model: Model) -> None:
    model.on("write it", calls("create", path="a/very/long/path/" * 8 + "x.txt", file_text="hi"), says("Written."))
    model.on("be wide", says(WIDE, reasoning="anunbrokenthought" * 20))
    model.on("which", calls("ask_user", question="Which one is it?" * 10, choices=["red " * 30, "blue"]), says("Fine."))


async def overflows(tab: Tab) -> list[str]:
    """The elements that reach beyond the sides of the page without a scroll bar of their own."""
    found: list[str] = await tab.page.evaluate(OVERFLOWS)
    return found


OVERFLOWS = """() => {
  const width = document.documentElement.clientWidth;
  const isHeld = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement) {
      const { overflowX } = getComputedStyle(at);
      if (overflowX !== "visible" && at.getBoundingClientRect().right <= width + 1 && at !== document.body) return true;
    }
    return false;
  };
  const found = [...document.querySelectorAll("body *")].filter((element) => {
    const at = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    return at.width > 0 && style.visibility === "visible" && at.right > width + 1 && !isHeld(element);
  });
  if (document.scrollingElement.scrollWidth > width) found.push(document.documentElement);
  return found.map((element) => element.outerHTML.slice(0, 120));
}"""


async def test_a_phone_shows_all_of_it_without_scrolling_sideways_and_the_list_as_a_drawer(
    browser: Browser, server: Server, client: Client
) -> None:
    person = await Person.of(browser, server, **PHONE)
    tab = await person.tab()
    assert await overflows(tab) == []
    await tab.keep_picture("phone-start")
    await tab.say("be wide " + "anunbrokenword" * 20)
    await tab.until_idle()
    assert await overflows(tab) == []
    await tab.keep_picture("phone-conversation")
    await tab.say("write it")
    await tab.until_asked()
    assert await overflows(tab) == []
    await tab.keep_picture("phone-approval")
    await expect(tab.page.get_by_role("navigation", name="Sessions")).to_be_hidden()
    await tab.button("Show the sessions").click()
    await expect(tab.page.get_by_role("navigation", name="Sessions")).to_be_in_viewport()
    assert await overflows(tab) == []
    await tab.keep_picture("phone-list")
    await tab.button("Close the list").click()
    await expect(tab.page.get_by_role("navigation", name="Sessions")).to_be_hidden()
    for panel in ("Tasks", "Timeline"):
        await tab.button(panel).click()
        await expect(tab.page.get_by_role("complementary", name=panel)).to_be_in_viewport()
        assert await overflows(tab) == []
        await tab.keep_picture(f"phone-{panel.lower()}")
        await tab.page.get_by_role("complementary", name=panel).get_by_role("button", name="Close").first.click()
    await tab.page.goto(f"{person.url}/#/overview")
    await expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    assert await overflows(tab) == []
    await client.post(f"/v1/sessions/{await newest(client)}/cancel", json={})
    await person.leave()


async def newest(client: Client) -> str:
    return str((await client.get("/v1/sessions")).json()["sessions"][0]["id"])


@pytest.fixture(scope="module")
def axe(packages: Path) -> str:
    return (packages / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def findings(tab: Tab, axe: str) -> list[str]:
    """The serious and critical accessibility violations, by the rules of axe."""
    await tab.page.evaluate(axe)
    found: dict[str, Any] = await tab.page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{broken['id']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
        for broken in found["violations"]
        if broken["impact"] in ("serious", "critical")
        for node in broken["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_is_hard_to_use_in_light_or_dark(
    browser: Browser, server: Server, client: Client, axe: str, scheme: str
) -> None:
    person = await Person.of(browser, server, color_scheme=scheme)
    person.expects("401")
    tab = await person.tab_at("")
    await expect(tab.page.get_by_label("Key or token")).to_be_visible()
    assert await findings(tab, axe) == []
    await tab.page.close()
    tab = await person.tab()
    background = await tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 384) is (scheme == "dark")
    assert await findings(tab, axe) == []
    await tab.keep_picture(f"start-{scheme}")
    await tab.say("be wide")
    await tab.until_idle()
    assert await findings(tab, axe) == []
    await tab.say("write it")
    await tab.until_asked()
    await tab.button("Timeline").click()
    assert await findings(tab, axe) == []
    await tab.keep_picture(f"approval-{scheme}")
    await tab.button("Tasks").click()
    await tab.page.keyboard.press("Control+k")
    await expect(tab.page.get_by_role("dialog").get_by_role("combobox")).to_be_focused()
    assert await findings(tab, axe) == []
    await tab.keep_picture(f"palette-{scheme}")
    await tab.page.keyboard.press("Escape")
    await tab.page.goto(f"{person.url}/#/overview")
    await expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    assert await findings(tab, axe) == []
    await tab.page.set_viewport_size({"width": 390, "height": 844})
    await tab.button("Show the sessions").click()
    assert await findings(tab, axe) == []
    await client.post(f"/v1/sessions/{await newest(client)}/cancel", json={})
    await person.leave()


async def test_nothing_moves_for_who_wants_it_so(browser: Browser, server: Server, model: Model) -> None:
    model.on("take your time", says("one two"))
    held = model.hold("take your time", piece=1)
    for motion, moves in (("no-preference", True), ("reduce", False)):
        person = await Person.of(browser, server, reduced_motion=motion)
        tab = await person.tab()
        await tab.say("take your time")
        await held.until_reached()
        await expect(tab.page.locator(".pulse").first).to_be_visible()
        running = await tab.page.evaluate("document.getAnimations().length")
        assert (running > 0) is moves, motion
        await person.leave()
    held.release()


async def test_the_keyboard_alone_goes_everywhere_in_order_and_everything_has_a_name(
    person: Person, client: Client
) -> None:
    tab = await person.tab(await client.make(title="One of them"))
    await expect(tab.rows.first).to_be_visible()
    await tab.page.evaluate("document.activeElement.blur()")
    names: list[str] = []
    for _ in range(60):
        await tab.page.keyboard.press("Tab")
        name = await tab.page.evaluate(FOCUSED)
        if name == "body":
            break
        names.append(name)
    assert "" not in names, names
    order = ["Skip to the message box", "New session", "Search sessions", "Overview", "One of them", "Message"]
    places = [next(index for index, name in enumerate(names) if wanted in name) for wanted in order]
    assert places == sorted(places), names
    await tab.page.keyboard.press("Tab")
    await tab.page.get_by_role("link", name="Skip to the message box").focus()
    await tab.page.keyboard.press("Enter")
    await expect(tab.box).to_be_focused()
    await expect(tab.page.get_by_role("heading", name="One of them", level=1)).to_be_visible()


FOCUSED = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return "body";
  const label = at.getAttribute("aria-label") || (at.labels?.[0]?.textContent ?? "") || at.textContent || at.title;
  return label.trim();
}"""


async def test_screen_readers_announce_messages_as_they_arrive(person: Person, model: Model) -> None:
    model.on("tell me", says("I do."))
    tab = await person.tab()
    await tab.say("tell me")
    await tab.until_idle()
    assert await tab.log.get_attribute("aria-live") == "polite"
    await expect(tab.log.get_by_role("article", name="Your message")).to_contain_text("tell me")
    await expect(tab.answers).to_contain_text("I do.")
    assert await tab.page.evaluate("document.documentElement.lang") == "en"
