"""A link with a key in it replaces nobody's own: the page asks, and says what would change."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.http.world import Place, patience
from tests.http.world import Server as Running
from tests.web.looking import Person, Tab
from tests.web.test_signing_in import key_of
from tests.wire.ai_sdk.harness import Server

pytestmark = pytest.mark.anyio


class Two:
    """Ada, who is signed in, and Mallory, who makes a link of a key of her own."""

    def __init__(self, place: Place, running: Running, person: Person, ada: str, mallory: str) -> None:
        self.place = place
        self.running = running
        self.person = person
        self.ada = ada
        self.mallory = mallory

    async def signed_in(self) -> Tab:
        tab = await self.person.tab_at(f"#token={self.ada}")
        await expect(tab.box).to_be_visible()
        await expect(tab.rows).to_contain_text(["What Ada keeps"])
        return tab

    async def follow(self, tab: Tab, key: str) -> None:
        await tab.page.goto(f"{self.person.url}/#token={key}")

    async def revoke(self, key: str) -> None:
        """A server takes a moment to hear of it."""
        assert (await self.place.run("keys", "revoke", key[3:15])).code == 0
        async with self.running.client(key) as client, patience():
            while (await client.get("/v1/sessions")).status_code != 401:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


@pytest.fixture
async def two(browser: Browser, server: Server, tmp_path: Path) -> AsyncIterator[Two]:
    place = Place(tmp_path)
    ada, mallory = [await key_of(place, name) for name in ("ada", "mallory")]
    async with place.serve("--auth", "keys") as running:
        for key, title in ((ada, "What Ada keeps"), (mallory, "What Mallory reads")):
            async with running.client(key) as client:
                await client.make(title=title)
        person = Person(await browser.new_context(), server, running.url)
        yield Two(place, running, person, ada, mallory)
        await person.leave()


def question(tab: Tab) -> Locator:
    return tab.page.get_by_role("dialog", name="Sign in with another key?")


async def kept(tab: Tab) -> str:
    return str(await tab.page.evaluate("JSON.parse(localStorage.getItem('holdfast.token'))"))


@pytest.mark.parametrize("leaves_by", ["button", "escape"])
async def test_a_link_with_another_key_asks_first_and_a_no_keeps_the_old_key(two: Two, leaves_by: str) -> None:
    tab = await two.signed_in()
    await two.follow(tab, two.mallory)
    await expect(question(tab)).to_contain_text("You are")
    await expect(question(tab)).to_contain_text(f"ada (user) with the key {two.ada[3:15]}")
    await expect(question(tab)).to_contain_text(f"mallory (user) with the key {two.mallory[3:15]}")
    await tab.keep_picture("other-key")
    assert two.mallory not in tab.page.url
    assert await kept(tab) == two.ada
    if leaves_by == "button":
        await question(tab).get_by_role("button", name="Stay as I am").click()
    else:
        await tab.page.keyboard.press("Escape")
    await expect(question(tab)).to_have_count(0)
    assert await kept(tab) == two.ada
    await tab.page.reload()
    await expect(tab.rows).to_contain_text(["What Ada keeps"])


async def test_the_same_in_a_new_tab_and_other_tabs_are_not_changed_either(two: Two) -> None:
    tab = await two.signed_in()
    other = await two.person.tab_at(f"#token={two.mallory}")
    await expect(question(other)).to_be_visible()
    await expect(other.rows).to_contain_text(["What Ada keeps"])
    assert await kept(other) == two.ada
    await expect(tab.rows).to_contain_text(["What Ada keeps"])


async def test_on_a_yes_the_links_key_is_used(two: Two) -> None:
    tab = await two.signed_in()
    await two.follow(tab, two.mallory)
    await question(tab).get_by_role("button", name=re.compile("^Use the link")).click()
    await expect(tab.rows).to_contain_text(["What Mallory reads"])
    assert await kept(tab) == two.mallory


async def test_a_link_with_ones_own_key_asks_nothing(two: Two) -> None:
    tab = await two.signed_in()
    await two.follow(tab, two.ada)
    await expect(tab.rows).to_contain_text(["What Ada keeps"])
    await expect(question(tab)).to_have_count(0)


async def test_a_link_with_an_unknown_key_changes_nothing(two: Two) -> None:
    two.person.expects("401")
    tab = await two.signed_in()
    await two.follow(tab, "not-a-key")
    await expect(tab.page.locator(".notices")).to_contain_text("You stay signed in")
    assert await kept(tab) == two.ada


async def test_a_link_signs_in_a_person_whose_key_was_revoked(two: Two) -> None:
    two.person.expects("401")
    tab = await two.signed_in()
    await tab.page.goto("about:blank")
    await two.revoke(two.ada)
    await two.follow(tab, two.mallory)
    await expect(tab.rows).to_contain_text(["What Mallory reads"])
    assert await kept(tab) == two.mallory
