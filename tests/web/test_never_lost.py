"""Reloads, two tabs, a network that goes away, a server that is killed in the middle of a word: what was shown stays,
and in the end everybody has before them what a reader has who was never disturbed."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Error, Route, expect

from tests.http.world import Client
from tests.web.looking import NO_LINE, Person, Tab
from tests.web.network import Network
from tests.wire.ai_sdk.harness import Home, Model, Server, calls, patience, says

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def person_at(browser: Browser, server: Server) -> AsyncIterator[Person]:
    person = await Person.of(browser, server)
    yield person
    await person.leave()


async def same_as_undisturbed(tab: Tab, client: Client) -> list[str]:
    """The text of the tab, which equals that of a newly opened one."""
    fresh = await tab.person.tab(tab.session)
    await fresh.until_idle()
    shown = await tab.said()
    assert shown == await fresh.said()
    assert shown == await client.texts(tab.session)
    marked = tab.log.locator("p.interrupted")
    assert await marked.count() == await fresh.log.locator("p.interrupted").count()
    await fresh.page.close()
    return shown


CUTS = [(0, None), (0, 2), (0, 7), (1, 3)]
"""Before the model said anything, while it thinks, while it speaks, and while it speaks after a tool."""


async def test_a_server_killed_in_mid_token_goes_on_and_what_was_shown_stays_marked(
    browser: Browser, own_home: Home, model: Model
) -> None:
    """The model answers differently when it is asked again; nobody reloads anything."""
    (own_home.work / "poem.txt").write_text("Roses are red.\n")
    for number, _ in enumerate(CUTS):
        first = calls("view", path=str(own_home.work / "poem.txt"))
        thinks = {"reasoning": "I think about this well.", "tool_calls": first.tool_calls}
        model.on(f"cut {number}", says("", texts=("I look it up now.", "Let me look again."), **thinks), ENDS)
    holds = [model.hold(f"cut {number}", round=round, piece=piece) for number, (round, piece) in enumerate(CUTS)]
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(own_home.serve())
        tabs: list[Tab] = []
        for number, hold in enumerate(holds):
            person = await stack.enter_async_context(person_at(browser, server))
            person.expects(NO_LINE)
            tabs.append(await person.tab())
            await tabs[-1].say(f"cut {number}, please")
            await hold.until_reached()
        await expect(tabs[2].log).to_contain_text("I look")
        await expect(tabs[3].log).to_contain_text("It is about")
        before = [await tab.said() for tab in tabs]
        await server.kill()
        for tab in tabs:
            await expect(tab.line).to_contain_text("Reconnecting")
        assert [await tab.said() for tab in tabs] == before
        await tabs[2].keep_picture("reconnecting")
        await stack.enter_async_context(own_home.serve(port=server.port))
        await expect(tabs[2].log.locator("p.interrupted")).to_be_visible()
        for hold in holds:
            hold.release()
        async with tabs[0].person.client() as client:
            for tab in tabs:
                await tab.until_idle()
                await expect(tab.line).to_have_text("")
                await same_as_undisturbed(tab, client)
        assert [await tab.log.locator("p.interrupted").count() for tab in tabs] == [0, 1, 1, 1]
        assert (await tabs[2].said())[:2] == before[2]
        assert "again" in (await tabs[2].said())[2]
        assert (await tabs[3].said())[: len(before[3])] == before[3]
        assert (await tabs[3].said())[-1] == "Poets wrote it, for roses."
        await tabs[3].keep_picture("after-a-kill")
        await tabs[3].button("Timeline").click()
        facts = tabs[3].page.get_by_label("Timeline", exact=True).locator(".facts")
        await expect(facts).to_contain_text(re.compile("crash", re.IGNORECASE))
        await expect(facts).to_contain_text(re.compile("hand|taken over", re.IGNORECASE))
        await tabs[3].keep_picture("timeline")


ENDS = says("", texts=("It is about roses, I believe.", "Poets wrote it, for roses."))


@pytest.fixture
async def network(server: Server) -> AsyncIterator[Network]:
    async with Network(server.port) as network:
        yield network


@pytest.fixture
async def far_person(browser: Browser, server: Server, network: Network) -> AsyncIterator[Person]:
    """Somebody whose line to the server is not a good one."""
    person = await Person.of(browser, server, through=network)
    person.expects(NO_LINE)
    yield person
    await person.leave()


async def test_a_network_that_goes_and_comes_back_costs_nothing(
    far_person: Person, network: Network, client: Client, model: Model
) -> None:
    model.on("tell me slowly", says("once upon a time there was an end"))
    model.on("and then", says("nothing more"))
    held = model.hold("tell me slowly", piece=3)
    tab = await far_person.tab()
    await tab.say("tell me slowly")
    await held.until_reached()
    await expect(tab.answers).to_contain_text("once upon a")
    network.go_down()
    await far_person.context.set_offline(True)
    await expect(tab.line).to_contain_text("Reconnecting")
    held.release()
    await tab.say("and then?")
    await expect(tab.log.locator(".outgoing")).to_contain_text("Sending")
    network.come_up()
    await far_person.context.set_offline(False)
    await expect(tab.answers.last).to_contain_text("nothing more")
    await tab.until_idle()
    await expect(tab.line).to_have_text("")
    shown = await same_as_undisturbed(tab, client)
    assert shown == ["tell me slowly", "once upon a time there was an end", "and then?", "nothing more"]


async def test_a_line_that_fell_silent_is_taken_up_again_when_the_network_is_back(
    far_person: Person, network: Network, client: Client, model: Model
) -> None:
    """Nothing ends it: a machine that slept, or changed networks, has a connection that nobody is behind."""
    model.on("say nothing", says("all of this is missed"))
    held = model.hold("say nothing", piece=1)
    tab = await far_person.tab()
    await tab.say("say nothing")
    await held.until_reached()
    await expect(tab.answers).to_contain_text("all")
    network.fall_silent()
    held.release()
    await far_person.context.set_offline(True)
    await far_person.context.set_offline(False)
    await expect(tab.answers).to_contain_text("missed")
    await tab.until_idle()
    network.go_down()  # The browser would try what is left of the silent ones.
    network.come_up()
    await same_as_undisturbed(tab, client)


async def test_a_stream_cut_at_many_bytes_gives_the_same_text(
    far_person: Person, network: Network, client: Client, model: Model
) -> None:
    said = " ".join(f"wörd{number} 🌊" for number in range(60))
    model.on("cut me often", says(said, reasoning="I thought it över.", chunk_size=3))
    network.stream_bytes = [150, 311, 1_000, 1_777, 2_500, 4_099]
    tab = await far_person.tab()
    await tab.say("cut me often")
    await expect(tab.answers).to_contain_text("wörd59 🌊")
    await tab.until_idle()
    assert network.broken_streams >= 3
    network.stream_bytes = []
    assert await same_as_undisturbed(tab, client) == ["cut me often", said]


async def test_two_tabs_of_a_session_show_the_same_and_so_does_one_reloaded_in_mid_token(
    person: Person, client: Client, model: Model
) -> None:
    model.on("both of you", says("one two three four five"))
    held = model.hold("both of you", piece=3)
    tab = await person.tab()
    await tab.say("both of you")
    await held.until_reached()
    other = await person.tab(tab.session)
    for each in (tab, other):
        await expect(each.answers).to_have_text(re.compile("one two three"))
    await tab.page.reload()
    await expect(tab.answers).to_have_text(re.compile("one two three"))
    await expect(tab.button("Stop")).to_be_visible()
    held.release()
    for each in (tab, other):
        await expect(each.answers).to_contain_text("five")
        await each.until_idle()
        assert await same_as_undisturbed(each, client) == ["both of you", "one two three four five"]
    await other.say("hello from the other")
    await expect(tab.messages.last).to_contain_text("hello from the other")
    await tab.until_idle()


@pytest.mark.parametrize("arrives", [True, False], ids=["it-had-arrived", "it-had-not"])
async def test_a_message_that_was_being_sent_when_the_page_was_reloaded_is_sent_once(
    person: Person, client: Client, model: Model, arrives: bool
) -> None:
    text = f"only once {arrives}"
    model.on(text, says("I heard you."))
    person.expects(NO_LINE)
    tab = await person.tab()
    reached = asyncio.Event()

    async def lose_the_answer(route: Route) -> None:
        with contextlib.suppress(Error):  # A reload takes the request away.
            if arrives:
                await route.fetch()
            reached.set()
            await route.abort()

    await tab.page.route("**/stream", lose_the_answer)
    await tab.say(text)
    async with patience():
        await reached.wait()
    await expect(tab.log.locator(".outgoing, .bubble")).to_contain_text([text])
    await tab.page.unroute("**/stream")
    await tab.page.reload()
    await expect(tab.answers).to_contain_text("I heard you.")
    await tab.until_idle()
    assert await same_as_undisturbed(tab, client) == [text, "I heard you."]
    assert len(model.calls_about(text)) == 1


async def test_a_session_deleted_elsewhere_is_said_to_be_gone(person: Person, client: Client, model: Model) -> None:
    model.on("short life", says("Yes."))
    person.expects("404")
    tab = await person.tab()
    await tab.say("short life")
    await tab.until_idle()
    gone = tab.session
    assert (await client.delete(f"/v1/sessions/{gone}")).status_code == 204
    await expect(tab.page.get_by_role("heading", name="Session not found")).to_be_visible()
    await expect(tab.rows.filter(has_text="short life")).to_have_count(0)
    await tab.page.reload()
    await expect(tab.page.get_by_role("heading", name="Session not found")).to_be_visible()
    await tab.button("Start a new one").click()
    await expect(tab.page.get_by_role("heading", name="What should be done?")).to_be_visible()
