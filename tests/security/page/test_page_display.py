"""The page shows what is approved: all of it, and no character of it that a screen would obey or hide."""

import re

import pytest
from playwright.async_api import expect

from tests.http.world import Client
from tests.security.test_display import BIDI, HOSTILE, SPOOFED, VERY_LONG, is_plain
from tests.web.looking import Person, until
from tests.wire.ai_sdk.harness import Home, Model, calls, says

pytestmark = pytest.mark.anyio

NAME = f"a{BIDI}gpj.exe"
LONG = VERY_LONG.replace("true ", "true and this is a rather long line of a command, of which there are many, number ")


@pytest.fixture(autouse=True)
def script(model: Model) -> None:
    model.on("spoof a command", calls("exec", command=SPOOFED), says("Done."))
    model.on("spoof a file", calls("create", path=NAME, file_text=HOSTILE), says("Done."))
    model.on("spoof a question", calls("ask_user", question=HOSTILE, choices=[f"{BIDI}yes", "no"]), says("Done."))
    model.on("swap a command", calls("exec", command="cp א ב"), says("Done."))
    model.on("swap a file", calls("create", path="א ב.txt", file_text="cp א ב\n"), says("Done."))
    model.on("run a lot", calls("exec", command=LONG), says("Done."))


async def test_an_approval_card_shows_control_and_bidi_characters_as_escapes(person: Person) -> None:
    tab = await person.tab()
    for words, shown in (
        ("spoof a command", "cat notes.txt \\u202e\\u2066\\u200f# \\u001b[8mrm -rf x\\u001b[0m"),
        ("spoof a file", "a\\u202e\\u2066\\u200fgpj.exe"),
        ("spoof a question", "\\u202e\\u2066\\u200f\\u001b]0;owned"),
    ):
        await tab.say(words)
        card = await tab.until_asked()
        await expect(card).to_contain_text(shown)
        assert is_plain(await tab.log.locator(".tool").last.inner_text())
        await tab.keep_picture(words.replace(" ", "-"))
        await tab.button("Stop").click()
        await tab.until_idle()


async def test_a_diff_shows_them_too(person: Person) -> None:
    tab = await person.tab()
    await tab.say("spoof a file")
    card = await tab.until_asked()
    await expect(card.locator("pre")).to_contain_text("+\\u202e\\u2066\\u200f\\u001b]0;owned\\u0007")
    await expect(card.locator("pre")).to_contain_text("\\u200b\\u2028\\u{e0041}evil")


async def test_letters_from_right_to_left_swap_nothing_that_is_to_be_approved(person: Person) -> None:
    tab = await person.tab()
    for words, places in (
        ("swap a command", (".request pre code", ".tool-summary")),
        ("swap a file", (".request h3 code", ".request pre code", ".tool-summary")),
    ):
        await tab.say(words)
        card = await tab.until_asked()
        await expect(card).to_contain_text("א ב")
        await tab.keep_picture(words.replace(" ", "-"))
        tool = tab.log.locator(".tool").last
        await tool.locator(".tool-head").click()
        for place in (*places, ".tool-details pre code"):
            for found in await tool.locator(place).all():
                assert await found.evaluate(DRAWN) == "אב", place
        await tab.button("Stop").click()
        await tab.until_idle()


DRAWN = """(element) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const letters = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    [...node.data].forEach((letter, index) => {
      if (!"אב".includes(letter)) return;
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + 1);
      const { left, top } = range.getClientRects()[0];
      letters.push({ letter, left, top });
    });
  const lines = Map.groupBy(letters, ({ top }) => Math.round(top / 6));
  const drawn = [...lines.values()].map((line) => line.sort((one, other) => one.left - other.left));
  return [...new Set(drawn.map((line) => line.map(({ letter }) => letter).join("")))].join(" | ");
}"""
"""The letters of each line of an element, from left to right as they are drawn; equal lines once."""


async def test_titles_are_plain_in_every_place_and_in_the_tab(person: Person, client: Client) -> None:
    title = f"Report{BIDI}\u200bfdp"
    session = await client.make(title=title)
    tab = await person.tab(session)
    shown = "Report\\u202e\\u2066\\u200f\\u200bfdp"
    await expect(tab.page.get_by_role("heading", name=shown)).to_be_visible()
    await expect(tab.rows.first).to_contain_text(shown)
    await expect(tab.page).to_have_title(re.compile(re.escape(shown)))
    await tab.page.keyboard.press("Control+k")
    await expect(tab.page.get_by_role("option", name=f"Open: {shown}")).to_be_visible()
    await tab.page.keyboard.press("Escape")
    await tab.page.goto(f"{person.url}/#/overview")
    await expect(tab.page.locator(".card").filter(has_text="Report")).to_contain_text(shown)
    drawn = await tab.page.content()
    assert not any(sign in drawn for sign in (*BIDI, "\u200b"))


async def test_a_notification_is_plain(person: Person, client: Client) -> None:
    session = await client.make(title=f"Report{BIDI}fdp")
    tab = await person.tab(session)
    await tab.page.evaluate(NOTED)
    await tab.button("Notify me when a session needs an answer").click()
    await tab.page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
    await client.post(f"/v1/sessions/{session}/messages", json={"text": "spoof a command"})
    (body, *_) = await until(lambda: tab.page.evaluate("noted"))
    assert body == "Report\\u202e\\u2066\\u200ffdp needs an answer"


NOTED = """() => {
  window.noted = [];
  window.Notification = class { constructor(title, { body }) { noted.push(body); } };
  Notification.permission = "granted";
}"""


async def test_nothing_can_be_allowed_before_all_of_it_was_shown(person: Person, home: Home) -> None:
    tab = await person.tab()
    await tab.say("run a lot")
    card = await tab.until_asked()
    await expect(card).not_to_contain_text("hidden-tail")
    for name in ("Allow once", "Allow for this session", "Always …"):
        for button in await card.get_by_role("button", name=name).all():
            await expect(button).to_be_disabled()
    await expect(card.get_by_role("button", name="Deny …")).to_be_enabled()
    await card.focus()
    await card.press("a")
    await expect(card).to_contain_text("Only the beginning is shown")
    await tab.keep_picture("approval-long")
    await card.get_by_role("button", name=re.compile("^Show all of it")).click()
    await expect(card).to_contain_text("echo hidden-tail > tail.txt")
    await card.get_by_role("button", name="Allow once").click()
    await tab.until_idle()
    assert (home.work / "tail.txt").exists()
