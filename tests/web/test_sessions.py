"""Around the conversation: the list of sessions, the tasks of one, the palette and the keys."""

import os
import re

import msgspec
import pytest
from playwright.async_api import Locator, expect

from tests.http.world import Client
from tests.web.looking import NO_LINE, Person, Tab
from tests.wire.ai_sdk.harness import Home, Model, calls, says

pytestmark = pytest.mark.anyio


def row(tab: Tab, title: str) -> Locator:
    return tab.rows.filter(has_text=title)


async def choose(tab: Tab, title: str, action: str) -> None:
    """From the menu of a session."""
    await row(tab, title).get_by_role("button", name=re.compile("^More for")).click()
    await tab.page.get_by_role("menuitem", name=action, exact=True).click()


async def test_sessions_are_found_renamed_pinned_forked_exported_and_deleted(
    person: Person, client: Client, model: Model
) -> None:
    model.on("about whales", says("They are large."))
    for title in ("Whales of the north", "Bread and salt", "Old accounts"):
        await client.make(title=title)
    tab = await person.tab()
    await tab.say("all about whales")
    await tab.until_idle()
    whales = tab.session

    search = tab.page.get_by_role("searchbox")
    await search.fill("whales")
    await expect(tab.rows).to_have_count(2)
    await search.fill("all about")
    await expect(tab.rows).to_have_count(1)
    await search.fill("nothing has this")
    await expect(tab.page.get_by_text("No session contains this text.")).to_be_visible()
    await search.fill("")
    await expect(row(tab, "Bread and salt")).to_have_count(1)

    await choose(tab, "Bread and salt", "Rename")
    await tab.page.get_by_label("Name of the session").fill("Salt and bread")
    await tab.page.get_by_label("Name of the session").press("Enter")
    await expect(row(tab, "Salt and bread")).to_have_count(1)
    await choose(tab, "Old accounts", "Pin")
    await expect(tab.page.get_by_role("heading", name="Pinned")).to_be_visible()
    await expect(tab.rows.first).to_contain_text("Old accounts")

    async with tab.page.expect_download() as downloading:
        await choose(tab, "all about whales", "Export")
    kept = msgspec.json.decode((await (await downloading.value).path()).read_bytes())
    assert any(event["type"] == "assistant.message" for event in kept["events"])

    await choose(tab, "all about whales", "Fork")
    await expect(tab.page).not_to_have_url(re.compile(whales))
    await expect(tab.answers).to_contain_text("They are large.")
    await tab.say("more about whales")
    await tab.until_idle()
    assert len(await client.texts(whales)) == 2
    assert len(await client.texts(tab.session)) == 4

    forked = tab.session
    await choose(tab, "Salt and bread", "Delete")
    await tab.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(row(tab, "Salt and bread")).to_have_count(1)
    await choose(tab, "Salt and bread", "Delete")
    await tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(row(tab, "Salt and bread")).to_have_count(0)
    titles = [found["title"] for found in (await client.get("/v1/sessions")).json()["sessions"]]
    assert "Salt and bread" not in titles
    assert tab.session == forked
    await tab.keep_picture("list")


async def test_the_list_shows_what_runs_what_waits_and_what_was_not_read(
    person: Person, client: Client, model: Model
) -> None:
    model.on("run for long", says("one two"))
    model.on("ask about it", calls("ask_user", question="Which?", choices=["a"]), says("Fine."))
    model.on("say a word", says("Word."))
    held = model.hold("run for long", piece=1)
    tab = await person.tab()
    busy, asking, said = [await client.make(title=title) for title in ("It is busy", "It asks", "It has said")]
    async with client.stream("POST", f"/v1/sessions/{busy}/stream", json={"text": "run for long"}):
        await held.until_reached()
    await client.say(asking, "ask about it")
    await client.say(said, "say a word")
    await expect(row(tab, "It is busy").get_by_role("img", name="running")).to_be_visible()
    await expect(row(tab, "It asks").get_by_role("img", name="waits for an answer")).to_be_visible()
    await expect(row(tab, "It asks").locator(".badge")).to_have_text("1")
    await expect(row(tab, "It has said").locator(".unread")).to_be_visible()
    await expect(tab.page).to_have_title(re.compile(r"^\(1\) "))
    await row(tab, "It has said").get_by_role("link").click()
    await expect(tab.answers).to_contain_text("Word.")
    await expect(row(tab, "It has said").locator(".unread")).to_have_count(0)
    await tab.page.goto(f"{person.url}/#/overview")
    await expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    await expect(tab.page.get_by_role("main")).to_contain_text("It asks")
    await tab.keep_picture("overview")
    held.release()
    await expect(row(tab, "It is busy").get_by_role("img", name="idle")).to_be_visible()
    await tab.open(asking)
    await tab.log.locator(".request").get_by_role("button", name="a", exact=True).click()
    await expect(tab.page).to_have_title(re.compile(r"^[^(]"))


async def test_a_task_is_followed_as_it_writes_and_killed(
    person: Person, client: Client, home: Home, model: Model
) -> None:
    os.mkfifo(home.work / "more")
    command = "echo begun; cat more; exec sleep 600"
    model.on("start it", calls("exec", command=command, run_in_background=True), says("It runs."))
    model.on("<task-notification>", says("It was ended."))
    tab = await person.tab(await client.make(allow=["shell"], title="A task"))
    await tab.say("start it")
    await expect(tab.answers.last).to_contain_text("It runs.")
    await tab.button("Tasks").click()
    panel = tab.page.get_by_role("complementary", name="Tasks")
    await expect(panel.locator("pre")).to_contain_text("begun")
    with (home.work / "more").open("w") as pipe:
        pipe.write("and this came later\n")
    await expect(panel.locator("pre")).to_contain_text("and this came later")
    await tab.keep_picture("tasks")
    await panel.get_by_role("button", name="Kill").click()
    await expect(panel).to_contain_text(re.compile("killed"))
    await expect(panel.get_by_role("button", name="Kill")).to_have_count(0)
    await expect(tab.log.locator(".task-line")).to_contain_text(re.compile("ended|killed"))


async def test_everything_can_be_reached_by_keys_and_by_the_palette(
    person: Person, client: Client, model: Model
) -> None:
    await client.make(title="Far away")
    tab = await person.tab()
    keyboard = tab.page.keyboard
    await expect(row(tab, "Far away")).to_have_count(1)
    await keyboard.press("Control+k")
    palette = tab.page.get_by_role("dialog", name="Commands")
    await expect(palette.get_by_role("combobox")).to_be_focused()
    await keyboard.type("far aw")
    await expect(palette.get_by_role("option")).to_have_count(1)
    await tab.keep_picture("palette")
    await keyboard.press("Enter")
    await expect(palette).to_have_count(0)
    await expect(tab.page.get_by_role("heading", name="Far away", level=1)).to_be_visible()
    await keyboard.press("Control+k")
    await expect(palette.get_by_role("combobox")).to_be_focused()
    await keyboard.press("Escape")
    await expect(palette).to_have_count(0)
    await tab.page.locator("body").click(position={"x": 700, "y": 300})
    await keyboard.press("l")
    await expect(tab.page.get_by_label("Timeline", exact=True).locator("h2")).to_be_visible()
    await keyboard.press("t")
    await expect(tab.page.get_by_role("complementary", name="Tasks")).to_be_visible()
    await keyboard.press("o")
    await expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    await keyboard.press("n")
    await expect(tab.page.get_by_role("heading", name="What should be done?")).to_be_visible()
    await tab.page.locator("body").click(position={"x": 700, "y": 100})
    await keyboard.press("/")
    await expect(tab.page.get_by_role("searchbox")).to_be_focused()
    await keyboard.type("tonk")  # Letters that are keys elsewhere.
    await expect(tab.page.get_by_role("searchbox")).to_have_value("tonk")


async def test_a_timeline_whose_code_does_not_come_is_said_and_opens_after_the_page_is_loaded_anew(
    person: Person, client: Client
) -> None:
    session = await client.make(title="Has a timeline")
    tab = await person.tab(session)
    person.expects(NO_LINE)
    await tab.page.route("**/assets/timeline_panel-*", lambda route: route.abort())
    await tab.button("Timeline").click()
    await expect(tab.page.get_by_role("status").get_by_text("A part of the page could not be loaded.")).to_be_visible()
    await expect(tab.page.get_by_label("Timeline", exact=True).locator("h2")).to_have_count(0)
    await tab.page.unroute("**/assets/timeline_panel-*")
    await tab.page.reload()
    await tab.button("Timeline").click()
    await expect(tab.page.get_by_label("Timeline", exact=True).locator("h2")).to_be_visible()
