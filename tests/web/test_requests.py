"""Requests to people on the page: the first answer counts, from whichever tab or surface it comes."""

import re

import pytest
from playwright.async_api import expect

from tests.http.world import Client
from tests.web.looking import Person, Tab
from tests.wire.ai_sdk.harness import Home, Model, calls, calls_all, says

pytestmark = pytest.mark.anyio


def writes(name: str) -> dict[str, str]:
    return {"path": name, "file_text": "hi\n"}


@pytest.fixture(autouse=True)
def script(model: Model) -> None:
    model.on(
        "write two", calls("create", **writes("a.txt")), calls("create", **writes("b.txt")), says("Both are there.")
    )
    model.on("write one", calls("create", **writes("one.txt")), says("{last_tool_result}"))
    model.on("write many", calls_all(("create", writes("x.txt")), ("create", writes("y.txt"))), says("Done with many."))
    model.on(
        "ask me",
        calls("ask_user", question="Which colour?", choices=["red", "blue"]),
        says("You said: {last_tool_result}"),
    )
    model.on("look up", calls("lookup", name="ada"), says("Found: {last_tool_result}"))


async def test_allowing_once_asks_again_and_allowing_for_the_session_does_not(person: Person, home: Home) -> None:
    work = home.work
    tab = await person.tab()
    await tab.say("write two, please")
    card = await tab.until_asked()
    await expect(card).to_contain_text("a.txt")
    await expect(tab.page).to_have_title(re.compile(r"^\(1\) "))
    await tab.keep_picture("approval")
    assert not (work / "a.txt").exists()
    await card.get_by_role("button", name="Allow once").click()
    await expect(card).to_contain_text("b.txt")
    assert (work / "a.txt").exists()
    await card.get_by_role("button", name="Allow for this session").click()
    await tab.until_idle()
    await expect(tab.log).to_contain_text("Both are there.")
    await tab.say("write many of them")
    await expect(tab.log).to_contain_text("Done with many.")
    await tab.until_idle()
    await expect(tab.page).to_have_title(re.compile(r"^[^(]"))


async def test_denying_gives_the_reason_to_the_model(person: Person, home: Home) -> None:
    tab = await person.tab()
    await tab.say("write one")
    card = await tab.until_asked()
    await card.get_by_role("button", name=re.compile("^Deny")).click()
    reason = card.get_by_role("textbox")
    await expect(reason).to_be_focused()
    await reason.fill("Use a table instead.")
    await card.get_by_role("button", name="Deny", exact=True).click()
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("Use a table instead.")
    await expect(tab.log.locator(".tool-status")).to_contain_text("not allowed")
    assert not (home.work / "one.txt").exists()


async def answer(client: Client, tab: Tab, **given: object) -> None:
    (request,) = (await client.get(f"/v1/sessions/{tab.session}/requests")).json()["requests"]
    response = await client.post(f"/v1/sessions/{tab.session}/requests/{request['id']}", json=given)
    assert response.status_code == 200, response.text


async def test_a_request_answered_elsewhere_changes_before_ones_eyes(person: Person, client: Client) -> None:
    tab = await person.tab()
    await tab.say("write one")
    card = await tab.until_asked()
    other = await person.tab(tab.session)
    await other.until_asked()
    await answer(client, tab, decision="deny", feedback="Not today.")
    for each in (tab, other):
        await expect(each.log.locator(".request")).to_have_count(0)
        await each.until_idle()
        await expect(each.answers.last).to_contain_text("Not today.")
    await expect(card).to_have_count(0)
    assert await tab.said() == await other.said()


async def test_the_second_of_two_answers_is_refused_with_the_reason(person: Person, client: Client) -> None:
    person.expects("409")
    tab = await person.tab()
    await tab.say("ask me")
    card = await tab.until_asked()
    # The page hears of nothing while it answers: so it is the second, whoever is quicker.
    await tab.page.route("**/requests/*", lambda route: route.fulfill(status=409, json=SETTLED))
    await card.get_by_role("button", name="red").click()
    await expect(tab.page.get_by_role("status").filter(has_text="answered elsewhere")).to_be_visible()
    await tab.page.unroute("**/requests/*")
    await answer(client, tab, answer="blue", was_freeform=False)
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("You said:")
    await expect(tab.answers.last).to_contain_text("blue")


SETTLED = {"error": {"code": "request_settled", "message": "It was answered."}}


async def test_a_question_takes_a_choice_or_words_of_ones_own(person: Person) -> None:
    tab = await person.tab()
    await tab.say("ask me")
    card = await tab.until_asked()
    await expect(card).to_contain_text("Which colour?")
    await tab.keep_picture("question")
    await card.get_by_role("button", name="blue").click()
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("blue")
    await tab.say("ask me once more")
    card = await tab.until_asked()
    await card.get_by_role("textbox").fill("a shade of green")
    await card.get_by_role("textbox").press("Enter")
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("a shade of green")


async def test_a_client_tool_without_a_client_waits_and_a_person_may_give_its_result(
    person: Person, client: Client
) -> None:
    tool = {"name": "lookup", "description": "Look a name up.", "parameters": {"type": "object"}}
    session = await client.make(client_tools=[tool])
    tab = await person.tab(session)
    await tab.say("look up ada")
    card = await tab.until_asked()
    await expect(card).to_contain_text("lookup")
    await expect(card).to_contain_text("ada")
    await tab.keep_picture("client-tool")
    await card.get_by_role("textbox").fill("Ada Lovelace")
    await card.get_by_role("button", name=re.compile("^Give")).click()
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("Found: Ada Lovelace")
