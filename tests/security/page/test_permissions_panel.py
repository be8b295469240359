"""Permissions for always are listed and revoked on the page."""

import pytest
from playwright.async_api import expect

from tests.web.looking import Person
from tests.wire.ai_sdk.harness import Model, calls, says

pytestmark = pytest.mark.anyio


async def test_an_always_is_listed_and_taken_back(person: Person, model: Model) -> None:
    model.on("write it", calls("create", path="it.txt", file_text="hi\n"), says("Written."))
    tab = await person.tab()
    await tab.say("write it")
    card = await tab.until_asked()
    await card.get_by_role("button", name="Always …").click()
    await card.get_by_role("button", name="Always, wherever a session works").click()
    await tab.until_idle()
    await tab.button("Permissions").click()
    panel = tab.page.get_by_role("dialog", name="Permissions")
    always = panel.get_by_role("region", name="Always")
    await expect(always.get_by_role("listitem")).to_contain_text(["write"])
    await expect(always).to_contain_text("wherever a session works")
    await expect(always).to_contain_text("by local")
    await expect(panel.get_by_role("region", name="In this session")).to_have_count(0)
    await tab.keep_picture("permissions")
    await always.get_by_role("button", name="Revoke write").click()
    await expect(always).to_contain_text("Nothing is allowed permanently.")
    await tab.page.keyboard.press("Escape")
    await tab.say("write it again")
    await tab.until_asked()
