"""Messages during a turn, and drafts: they are visible while they wait, and none is lost."""

import re

import pytest
from playwright.async_api import expect

from tests.http.world import Client
from tests.web.looking import Person
from tests.wire.ai_sdk.harness import Home, Model, calls, says

pytestmark = pytest.mark.anyio


async def test_follow_ups_wait_as_chips_and_become_messages_at_their_place(
    person: Person, client: Client, home: Home, model: Model
) -> None:
    (home.work / "list.txt").write_text("milk\n")
    model.on("shop for me", calls("view", path=str(home.work / "list.txt")), says("I have it."))
    held = model.hold("shop for me", piece=0)
    tab = await person.tab()
    await tab.say("shop for me")
    await held.until_reached()
    chips = tab.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    for number, text in enumerate(("and bread", "and eggs", "and tea", "and sand"), start=1):
        await tab.say(text)
        await expect(chips).to_have_count(number)
    await tab.keep_picture("queue")
    await chips.filter(has_text="eggs").get_by_role("button", name="Edit").click()
    editing = chips.get_by_role("textbox")
    await editing.fill("and two eggs")
    await editing.press("Enter")
    await expect(chips.filter(has_text="and two eggs")).to_have_count(1)
    await chips.filter(has_text="tea").get_by_role("button", name=re.compile("^Move up")).click()
    await expect(chips.nth(1)).to_contain_text("and tea")
    await chips.filter(has_text="sand").get_by_role("button", name=re.compile("^Move back")).click()
    await expect(chips).to_have_count(3)
    await expect(tab.box).to_have_value("and sand")
    await tab.box.fill("")
    held.release()
    await expect(chips).to_have_count(0)
    await expect(tab.answers.last).to_contain_text("I have it.")
    await tab.until_idle()
    said = await tab.said()
    assert said == ["shop for me", "and bread", "and tea", "and two eggs", "I have it."]
    assert said == await client.texts(tab.session)
    assert await tab.log.locator(".bubble, .tool, .markdown").first.inner_text() == "shop for me"


async def test_a_follow_up_can_be_sent_now_or_kept_for_the_next_turn(
    person: Person, client: Client, model: Model
) -> None:
    model.on("count slowly", says("one two three"))
    model.on("something else", says("Else it is."))
    model.on("and after that", says("After that."))
    held = model.hold("count slowly", piece=1)
    tab = await person.tab()
    await tab.say("count slowly")
    await held.until_reached()
    await expect(tab.answers).to_contain_text("one")
    await tab.say("something else", key="Alt+Enter")
    chips = tab.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    await expect(chips).to_contain_text("next turn")
    await chips.get_by_role("button", name=re.compile("send this now", re.IGNORECASE)).click()
    await expect(tab.answers.last).to_contain_text("Else it is.")
    await tab.until_idle()
    await held.until_left()
    assert await tab.said() == ["count slowly", "one", "something else", "Else it is."]
    assert await client.texts(tab.session) == await tab.said()


async def test_a_draft_is_kept_for_each_session_over_a_reload(person: Person, client: Client, model: Model) -> None:
    first, second = await client.make(), await client.make()
    tab = await person.tab(first)
    await tab.box.fill("half a thought")
    await tab.open(second)
    await expect(tab.box).to_have_value("")
    await tab.box.fill("another half")
    await tab.page.reload()
    await expect(tab.box).to_have_value("another half")
    await tab.open(first)
    await expect(tab.box).to_have_value("half a thought")
    model.on("half a thought", says("A whole one."))
    await tab.box.press("Enter")
    await tab.until_idle()
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("A whole one.")
    await expect(tab.box).to_have_value("")


async def test_a_refused_message_returns_to_the_box_with_the_reason(
    person: Person, client: Client, model: Model
) -> None:
    person.expects("42[29]")
    tab = await person.tab(await client.make())
    long = "x" * 64_001
    await tab.say(long)
    await expect(tab.page.get_by_role("alert")).to_contain_text(re.compile("64,?000"))
    await expect(tab.box).to_have_value(long)
    await tab.box.fill("")
    model.on("keep busy", says("one two"))
    held = model.hold("keep busy", piece=1)
    await tab.say("keep busy")
    await held.until_reached()
    for number in range(10):
        assert (await client.add(tab.session, f"waits {number}", delivery="enqueue")).status_code == 202
    await tab.say("one too many")
    await expect(tab.page.get_by_role("alert")).to_be_visible()
    await expect(tab.box).to_have_value("one too many")
    assert "one too many" not in await client.texts(tab.session)
    await client.post(f"/v1/sessions/{tab.session}/cancel", json={})
    held.release()
    await tab.until_idle()
