"""A conversation as people have it: what the model says, what it does, and what one can do about it."""

import re

import pytest
from playwright.async_api import expect

from holdfast.models.scripted import Failure
from tests.http.world import Client
from tests.web.looking import Person
from tests.wire.ai_sdk.harness import Home, Model, calls, says

pytestmark = pytest.mark.anyio

MARKDOWN = """# A plan

First a *word*, then a **list**:

- one
- two

| name | count |
|---|---|
| apples | 3 |

```python
def main() -> None:
    print("hello")
```
"""


async def test_markdown_becomes_tables_lists_and_code_with_colours_that_can_be_copied(
    person: Person, model: Model
) -> None:
    model.on("show me everything", says(MARKDOWN))
    await person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = await person.tab()
    await tab.say("show me everything")
    await tab.until_idle()
    answer = tab.answers
    await expect(answer.get_by_role("heading", name="A plan")).to_be_visible()
    await expect(answer.get_by_role("listitem")).to_have_text(["one", "two"])
    await expect(answer.get_by_role("cell")).to_have_text(["apples", "3"])
    await expect(answer.locator("pre code .hljs-keyword").first).to_have_text("def")
    await answer.get_by_role("button", name="Copy code").click()
    await expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    copied = await tab.page.evaluate("navigator.clipboard.readText()")
    assert copied == 'def main() -> None:\n    print("hello")'
    await tab.keep_picture("conversation")


HOSTILE = """<script>window.hurt = "script"</script>
<img src=x onerror="window.hurt = 'image'">
<svg onload="window.hurt = 'svg'"></svg>
<a href="javascript:window.hurt='link'">click me</a> [and me](javascript:window.hurt='markdown')
[or me](  JaVaScRiPt:window.hurt='case') [data](data:text/html,<script>window.hurt='data'</script>)
<form action="/v1/sessions"><input name="key"><button>Sign in again</button></form>
<iframe srcdoc="<script>parent.hurt = 'frame'</script>"></iframe>
<style>body { display: none }</style><div style="position: fixed; inset: 0" id="composer" class="composer">over</div>
<base href="https://example.com/"><meta http-equiv="refresh" content="0;url=https://example.com/">

```html"><img src=x onerror="window.hurt='fence'">
<script>window.hurt = "code"</script>
```

![picture](https://example.com/seen.png)

It is over.
"""


async def test_hostile_markdown_is_shown_and_does_nothing(person: Person, model: Model) -> None:
    model.on("hurt me", says(HOSTILE, reasoning=HOSTILE))
    tab = await person.tab()
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    await tab.say("hurt me " + HOSTILE)
    await tab.until_idle()
    answer = tab.answers
    await expect(answer).to_contain_text("It is over.")
    await tab.button(re.compile("Thought")).click()
    for link in await answer.get_by_role("link").all():
        assert await link.get_attribute("href") in (None, "") or "script" not in str(await link.get_attribute("href"))
    for text in ("click me", "and me", "or me"):
        for found in await answer.get_by_text(text, exact=True).all():
            await found.click()
    await expect(
        answer.locator("script, img, svg:not(.icon), form, iframe, style, base, meta, [style], [id]")
    ).to_have_count(0)
    await expect(answer.locator("pre").last).to_contain_text('window.hurt = "code"')
    assert await tab.page.evaluate("window.hurt") is None
    assert [url for url in asked if not url.startswith((person.server.url, "data:"))] == []
    assert tab.page.url.startswith(person.server.url)


async def test_a_huge_answer_is_shown_whole(person: Person, model: Model) -> None:
    huge = "\n\n".join(f"Paragraph {number} " + "word " * 60 for number in range(300)) + "\n\n```json\n"
    huge += '{"deep": ' + "[" * 4_000 + "]" * 4_000 + "}\n" + "x" * 60_000 + "\n```\n\nThat was all."
    model.on("a huge one", says(huge, chunk_size=4_000))
    tab = await person.tab()
    await tab.say("a huge one")
    await tab.until_idle()
    await expect(tab.answers).to_contain_text("That was all.")
    shown = await tab.answers.inner_text()
    assert len(re.findall(r"Paragraph \d+ ", shown)) == 300
    assert shown.count("x" * 60_000) == 1
    assert shown.count("[" * 4_000) == 1


async def test_reasoning_is_one_line_that_opens_and_its_duration_is_said(person: Person, model: Model) -> None:
    model.on("think about it", says("Forty-two.", reasoning="First this, *then* that."))
    thinking = model.hold("think about it", piece=2)
    tab = await person.tab()
    await tab.say("think about it")
    await thinking.until_reached()
    await expect(tab.button("Thinking …")).to_be_visible()
    await expect(tab.answers).not_to_contain_text("First this")
    thinking.release()
    await tab.until_idle()
    line = tab.button(re.compile("^Thought"))
    await expect(line).to_have_text(re.compile(r"Thought for \d"))
    await expect(line).to_have_attribute("aria-expanded", "false")
    await line.click()
    await expect(tab.answers).to_contain_text("First this, then that.")
    await expect(tab.answers).to_contain_text("Forty-two.")


async def test_a_tool_call_is_a_card_with_what_ran_and_how_it_ended(person: Person, home: Home, model: Model) -> None:
    (path := home.work / "poem.txt").write_text("roses are red\n")
    model.on("read the poem", calls("view", path=str(path)), says("It is about roses."))
    tab = await person.tab()
    await tab.say("read the poem")
    await tab.until_idle()
    card = tab.log.locator(".tool")
    head = card.get_by_role("button", name=re.compile("view"))
    await expect(head).to_contain_text("poem.txt")
    await expect(head).to_contain_text("done")
    await expect(card).not_to_contain_text("roses are red")
    await head.click()
    await expect(card).to_contain_text("roses are red")
    await expect(card).to_contain_text('"path"')
    await tab.keep_picture("tool-card")


async def test_stop_stands_in_the_place_of_send_and_what_was_said_stays(person: Person, model: Model) -> None:
    model.on("count for ever", says("one two three four"))
    held = model.hold("count for ever", piece=2)
    tab = await person.tab()
    await tab.say("count for ever")
    await held.until_reached()
    await expect(tab.answers).to_contain_text("one two")
    await expect(tab.button("Send")).to_have_count(0)
    await tab.button("Stop").click()
    await tab.until_idle()
    await expect(tab.log.locator(".end")).to_contain_text("Stopped")
    await expect(tab.answers).to_contain_text("one two")
    await expect(tab.button("Send")).to_be_visible()
    await held.until_left()
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("one two")
    await expect(tab.log.locator(".end")).to_contain_text("Stopped")


async def test_stop_names_the_turn_that_the_person_saw(person: Person, model: Model) -> None:
    """If that turn is over by now, nobody's message is taken out of the queue."""
    model.on("count for ever", says("one two three four"))
    held = model.hold("count for ever", piece=2)
    tab = await person.tab()
    await tab.say("count for ever")
    await held.until_reached()
    await expect(tab.answers).to_contain_text("one two")
    async with tab.page.expect_request("**/cancel") as asked:
        await tab.button("Stop").click()
    sent = (await asked.value).post_data_json
    assert sent is not None
    assert sent["turn_id"]
    await tab.until_idle()
    await expect(tab.log.locator(".end")).to_contain_text("Stopped")
    await held.until_left()


async def test_an_error_stands_in_the_conversation_and_can_be_tried_again(person: Person, model: Model) -> None:
    model.on("fail once", says("It worked.", fail=Failure(kind="refused", times=1)))
    tab = await person.tab()
    await tab.say("fail once")
    await tab.until_idle()
    problem = tab.log.get_by_role("alert")
    await expect(problem).to_contain_text("refused")
    await tab.keep_picture("error")
    await problem.get_by_role("button", name="Try again").click()
    await expect(tab.answers).to_contain_text("It worked.")
    await tab.until_idle()
    await expect(problem).to_have_count(0)
    assert await tab.said() == ["fail once", "It worked."]


async def test_a_message_is_said_differently_and_an_answer_is_made_again(
    person: Person, client: Client, model: Model
) -> None:
    model.on("red flower", says("", texts=("A rose.", "A poppy.")))
    model.on("blue flower", says("A cornflower."))
    tab = await person.tab()
    await tab.say("a red flower")
    await tab.until_idle()
    await tab.button("Answer again").click()
    await expect(tab.answers).to_contain_text("A poppy.")
    await tab.until_idle()
    assert await tab.said() == ["a red flower", "A poppy."]
    await tab.button("Edit and send again").click()
    editing = tab.page.get_by_label("Edit your message")
    await expect(editing).to_be_focused()
    await editing.fill("a blue flower")
    await tab.button("Send again").click()
    await expect(tab.answers).to_contain_text("A cornflower.")
    await tab.until_idle()
    assert await tab.said() == ["a blue flower", "A cornflower."]
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("A cornflower.")
    assert await tab.said() == await client.texts(tab.session)
