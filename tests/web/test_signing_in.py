"""Signing in with the link that the server printed, or with a key; nothing is visible without."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.http.world import Client, Place
from tests.web.looking import Person, Tab
from tests.wire.ai_sdk.harness import Model, Server, says

pytestmark = pytest.mark.anyio


async def test_the_link_signs_in_and_leaves_no_token_in_the_address(person: Person, model: Model) -> None:
    model.on("hello", says("Hello."))
    tab = await person.tab()
    assert person.server.token not in tab.page.url
    await tab.say("hello")
    await tab.until_idle()
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("Hello.")
    stored = await tab.page.evaluate("history.length + ' ' + document.referrer + document.cookie")
    assert person.server.token not in stored


async def test_without_a_token_there_is_a_form_and_a_wrong_one_is_refused(person: Person, model: Model) -> None:
    person.expects("401")
    tab = await person.tab_at("")
    key = tab.page.get_by_label("Key or token")
    await expect(key).to_be_visible()
    await tab.keep_picture("sign-in")
    await key.fill("not-a-key")
    await key.press("Enter")
    await expect(tab.page.get_by_role("alert")).to_contain_text("does not know that key")
    await expect(tab.box).to_have_count(0)
    await key.fill(f"  {person.server.token}\n")
    await key.press("Enter")
    await expect(tab.box).to_be_visible()


async def test_a_session_that_was_linked_to_is_there_once_one_has_signed_in(
    person: Person, client: Client, model: Model
) -> None:
    person.expects("401")
    model.on("hello", says("Hello."))
    session = await client.make()
    await client.say(session, "hello")
    tab = await person.tab_at(f"#/s/{session}")
    key = tab.page.get_by_label("Key or token")
    await key.fill("wrong")
    await key.press("Enter")
    await expect(tab.page.get_by_role("alert")).to_contain_text("does not know that key")
    await key.fill(person.server.token)
    await key.press("Enter")
    await expect(tab.answers).to_contain_text("Hello.")


@pytest.mark.parametrize("address", ["#/s/%E0%A4%A", "#token=%E0%A4%A", "#/s/..%2f..%2fetc", "#/s/<b>", "#/nowhere"])
async def test_an_address_that_makes_no_sense_does_no_harm(person: Person, address: str) -> None:
    person.expects("40[14]")
    tab = await person.tab()
    await tab.page.goto(f"{person.url}/{address}")
    await tab.page.reload()
    await expect(tab.page.get_by_role("heading").first).to_be_visible()
    await expect(tab.page.locator("body")).not_to_be_empty()


async def test_a_key_shows_what_is_its_owners_and_nothing_else(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    ada, bob = [await key_of(place, name) for name in ("ada", "bob")]
    async with place.serve("--auth", "keys") as running:
        async with running.client(ada) as client:
            session = await client.make(title="What Ada keeps")
        person = Person(await browser.new_context(), server, running.url)
        person.expects("40[14]")
        tab = await person.tab_at("")
        await sign_in(tab, ada)
        await expect(tab.rows).to_contain_text(["What Ada keeps"])
        await tab.page.evaluate("localStorage.clear()")
        await tab.page.reload()
        await sign_in(tab, bob)
        await expect(tab.box).to_be_visible()
        await expect(tab.rows).to_have_count(0)
        await tab.page.goto(f"{running.url}/#/s/{session}")
        await expect(tab.page.get_by_role("heading", name="Session not found")).to_be_visible()
        await person.leave()


async def key_of(place: Place, owner: str) -> str:
    done = await place.run("keys", "create", "--name", "browser", "--owner", owner)
    assert done.code == 0, done.err
    return done.out.strip()


async def sign_in(tab: Tab, key: str) -> None:
    await tab.page.get_by_label("Key or token").fill(key)
    await tab.button("Sign in").click()
