"""Files on the page: picked, pasted and dropped, shown with their message, saved, and never lost with it."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.files.test_files import PNG
from tests.web.looking import Person, Tab
from tests.web.test_looks import PHONE, overflows
from tests.wire.ai_sdk.harness import Model, Server, says

pytestmark = pytest.mark.anyio

GIVE = """([name, type, text, event]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type }));
  const box = document.querySelector("#composer");
  const given = event === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  box.dispatchEvent(given);
}"""


def attached(tab: Tab) -> Locator:
    return tab.page.get_by_role("list", name="Attached files").get_by_role("listitem")


async def pick(tab: Tab, *files: tuple[str, str, bytes]) -> None:
    given: list[Any] = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    await tab.page.locator("input[type=file]").set_input_files(given)


async def test_files_are_picked_pasted_and_dropped_and_go_with_the_message(
    person: Person, model: Model, tmp_path: Path
) -> None:
    model.on("look at these", says("I have seen them."))
    tab = await person.tab()
    await pick(tab, ("dot.png", "image/png", PNG))
    await tab.page.evaluate(GIVE, ["pasted.txt", "text/plain", "some text", "paste"])
    await tab.page.evaluate(GIVE, ["dropped.csv", "text/csv", "a,b", "drop"])
    await expect(attached(tab)).to_have_count(3)
    await expect(attached(tab).locator("img")).to_have_count(1)
    await expect(tab.page.locator(".attached .uploading")).to_have_count(0)
    await tab.page.reload()
    await expect(attached(tab)).to_have_count(3)
    await tab.button("Remove dropped.csv").click()
    await expect(attached(tab)).to_have_count(2)
    await tab.say("look at these")
    await expect(tab.answers).to_contain_text("I have seen them.")
    await expect(attached(tab)).to_have_count(0)
    for _ in range(2):
        sent = tab.messages.get_by_role("list", name="Files of this message").get_by_role("listitem")
        await expect(sent).to_have_count(2)
        await expect(sent.locator("img")).to_have_count(1)
        await expect(tab.messages.locator(".bubble")).to_have_text("look at these")
        async with tab.page.expect_download() as saving:
            await sent.filter(has_text="pasted.txt").get_by_role("button").click()
        download = await saving.value
        assert download.suggested_filename == "pasted.txt"
        await tab.page.reload()
    assert "[Attached files]" in str(model.calls_about("look at these")[0])


async def test_a_file_alone_is_sent_and_a_wrong_one_says_why(person: Person, model: Model) -> None:
    person.expects("422")
    tab = await person.tab()
    await pick(tab, ("fake.png", "image/png", b"no picture"))
    await expect(attached(tab).get_by_role("alert")).to_contain_text("its content is not")
    await expect(tab.button("Send")).to_be_disabled()
    await tab.button("Remove fake.png").click()
    await pick(tab, ("notes.txt", "text/plain", b"some notes"))
    await expect(tab.button("Send")).to_be_enabled()
    await tab.button("Send").click()
    await tab.until_idle()
    await expect(tab.messages.get_by_role("listitem")).to_contain_text("notes.txt")


async def test_a_message_that_is_taken_back_brings_its_files(person: Person, model: Model) -> None:
    model.on("be slow", says("one two"))
    held = model.hold("be slow", piece=0)
    tab = await person.tab()
    await tab.say("be slow")
    await held.until_reached()
    await pick(tab, ("notes.txt", "text/plain", b"some notes"))
    await expect(tab.page.locator(".attached .ready")).to_have_count(1)
    await tab.say("and this")
    chips = tab.page.get_by_role("list", name="Queued messages").get_by_role("listitem")
    await expect(chips).to_contain_text("1 file")
    await expect(attached(tab)).to_have_count(0)
    await chips.get_by_role("button", name="Move back into the message box").click()
    await expect(tab.box).to_have_value("and this")
    await expect(attached(tab)).to_have_count(1)
    held.release()
    await tab.until_idle()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["phone", "desktop"])
async def test_files_fit_on_the_page(browser: Browser, server: Server, model: Model, scheme: str, size: str) -> None:
    model.on("see what I mean", says("Yes."))
    person = await Person.of(browser, server, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    tab = await person.tab()
    files = [("dot.png", "image/png", PNG), ("a very long name of a file " * 4 + ".txt", "text/plain", b"x" * 5_000)]
    await pick(tab, *files)
    await expect(tab.page.locator(".attached .ready")).to_have_count(2)
    await tab.say("see what I mean")
    await tab.until_idle()
    await pick(tab, *files, ("c.csv", "text/csv", b"1,2"))
    await expect(tab.page.locator(".attached .ready")).to_have_count(3)
    await expect(tab.page.locator(".attached img")).to_have_count(2)
    await tab.keep_picture(f"files-{size}-{scheme}")
    assert await overflows(tab) == []
    await person.leave()
