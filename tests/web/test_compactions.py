"""A long conversation in the page: compacted, with a pinned message, and a bar that shows how full its context is."""

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from holdfast.models.model import TokenUsage
from tests.web.looking import Person, Tab
from tests.web.test_looks import PHONE, overflows
from tests.wire.ai_sdk.harness import Model, Server, says

pytestmark = pytest.mark.anyio

USED = TokenUsage(input_tokens=53_000, output_tokens=800, cache_read_tokens=39_750)


@pytest.fixture(autouse=True)
def script(model: Model) -> None:
    model.on("remember", says("That is noted, and kept for later. " * 40, usage=USED))


async def talked(person: Person) -> Tab:
    tab = await person.tab()
    for text in (
        "Please remember the lamp on the stair.",
        "Always remember to ask before you push.",
        "And remember it.",
    ):
        await tab.say(text)
        await tab.until_idle()
    return tab


async def test_a_conversation_is_compacted_from_the_box_and_shows_the_summary_where_it_stands(person: Person) -> None:
    tab = await talked(person)
    await expect(tab.page.get_by_role("meter", name="Context")).to_have_attribute("aria-valuetext", "42 % full")
    await tab.say("/compact Keep the rule about pushing.")
    line = tab.log.get_by_role("button", name="Context summarised")
    await expect(line).to_contain_text("53,800 →")
    await expect(tab.messages).to_have_count(3)
    await line.focus()
    await line.press("Enter")
    await expect(line).to_have_attribute("aria-expanded", "true")
    await expect(tab.log.locator(".compaction")).to_contain_text("3 messages of people stay word for word")
    await expect(tab.log.locator(".compaction .markdown")).to_contain_text("Goal")
    await tab.page.reload()
    await expect(tab.log.get_by_role("button", name="Context summarised")).to_have_count(1)


async def test_a_refused_compaction_comes_back_into_the_box_with_its_reason(person: Person, model: Model) -> None:
    person.expects("409")
    tab = await talked(person)
    await tab.page.get_by_role("listitem").get_by_role("button", name="More for Please remember").first.click()
    await tab.page.get_by_role("menuitem", name="Compact").click()
    await expect(tab.log.get_by_role("button", name="Context summarised")).to_be_visible()
    await tab.say("/compact")
    await expect(tab.page.get_by_role("status").filter(has_text="nothing to summarise")).to_be_visible()
    await expect(tab.box).to_have_value("/compact")


async def test_a_summary_that_is_being_made_is_cancelled_from_its_line_in_any_tab(person: Person, model: Model) -> None:
    tab = await talked(person)
    held = model.hold("Write the summary now.")
    await tab.say("/compact")
    await held.until_reached()
    other = await person.tab(tab.session)
    await expect(other.log.get_by_role("status").filter(has_text="Summarising")).to_be_visible()
    cancel = other.log.get_by_role("button", name="Cancel")
    await cancel.focus()
    await cancel.press("Enter")
    for each in (tab, other):
        await expect(each.log.locator(".compaction")).to_have_text(
            "The summary was cancelled. The context stays as it is."
        )
        await expect(each.log.get_by_role("button", name="Cancel")).to_have_count(0)
    held.release()
    await tab.say("/compact")
    await expect(tab.log.get_by_role("button", name="Context summarised")).to_be_visible()


async def test_a_message_is_pinned_and_unpinned_by_keyboard_and_every_tab_sees_the_mark(person: Person) -> None:
    tab = await talked(person)
    other = await person.tab(tab.session)
    rule = tab.messages.nth(1)
    pin = rule.get_by_role("button", name="Pin message")
    await pin.focus()
    await pin.press("Enter")
    await expect(rule.locator(".tag.pinned")).to_be_visible()
    await expect(other.messages.nth(1).locator(".tag.pinned")).to_be_visible()
    unpin = rule.get_by_role("button", name="Unpin message")
    await expect(unpin).to_have_attribute("aria-pressed", "true")
    await unpin.press("Enter")
    await expect(other.messages.nth(1).locator(".tag.pinned")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_it_fits_every_screen(browser: Browser, server: Server, model: Model, size: str, scheme: str) -> None:
    options: dict[str, Any] = {**(PHONE if size == "phone" else {}), "color_scheme": scheme}
    person = await Person.of(browser, server, **options)
    tab = await talked(person)
    await tab.messages.nth(1).get_by_role("button", name="Pin message").click()
    held = model.hold("Write the summary now.")
    await tab.say("/compact")
    await tab.log.get_by_role("button", name="Cancel").scroll_into_view_if_needed()
    await tab.keep_picture(f"compacting-{size}-{scheme}")
    assert await overflows(tab) == []
    held.release()
    line = tab.log.get_by_role("button", name="Context summarised")
    await line.click()
    await expect(tab.log.locator(".compaction .markdown")).to_be_visible()
    await tab.keep_picture(f"compaction-{size}-{scheme}")
    assert await overflows(tab) == []
    await tab.messages.nth(1).scroll_into_view_if_needed()
    await tab.keep_picture(f"pinned-{size}-{scheme}")
    await person.leave()
