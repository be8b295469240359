"""A person at the page: a browser context with its tabs, what they do there, and what they have before them.

The page's own words for things stand in here, so that tests read as what people do.
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page, expect

from tests.http.world import Client
from tests.web.network import Network
from tests.wire.ai_sdk.harness import Server

PATIENCE_MS = 45_000
"""How long a tab may take to show what it must. No test that passes waits so long."""

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"

NO_LINE = r"Failed to load resource: net::ERR_"
"""The error that a browser logs about an unreachable server."""

expect.set_options(timeout=PATIENCE_MS)


class Person:
    """A person with tabs. Every error in a tab is recorded, and fails a test that does not expect it."""

    def __init__(self, context: BrowserContext, server: Server, url: str) -> None:
        self.context = context
        self.server = server
        self.url = url
        self.problems: list[str] = []
        self._expected: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.problems.append(f"{error.error}"))

    @classmethod
    async def of(cls, browser: Browser, server: Server, *, through: Network | None = None, **options: Any) -> "Person":
        given = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", "color_scheme": "light"}
        url = server.url if through is None else f"http://127.0.0.1:{through.port}"
        return cls(await browser.new_context(**{**given, **options}), server, url)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def expects(self, problem: str) -> None:
        """A browser notes every refusal that it gets; here this one is what the test is about."""
        self._expected.append(problem)

    async def leave(self) -> None:
        await self.context.close()
        unexpected = [text for text in self.problems if not any(re.search(known, text) for known in self._expected)]
        assert unexpected == [], unexpected

    async def tab(self, session: str = "") -> "Tab":
        """Signed in, at the start or at a session."""
        tab = Tab(await self.context.new_page(), self)
        await tab.go_by_link()
        if session:
            await tab.open(session)
        return tab

    async def tab_at(self, address: str) -> "Tab":
        """Not signed in by anybody."""
        tab = Tab(await self.context.new_page(), self)
        await tab.page.goto(f"{self.url}/{address}")
        return tab

    def client(self) -> Client:
        """The same person elsewhere, without a page."""
        headers = {"authorization": f"Bearer {self.server.token}"}
        return Client(base_url=self.server.url, headers=headers)


class Tab:
    def __init__(self, page: Page, person: Person) -> None:
        self.page = page
        self.person = person

    # Getting there

    async def go_by_link(self) -> None:
        """By the link that the server printed."""
        await self.page.goto(f"{self.person.url}/#token={self.person.server.token}")
        await expect(self.box).to_be_visible()

    async def open(self, session: str) -> None:
        await self.page.goto(f"{self.person.url}/#/s/{session}")
        await expect(self.log).to_have_attribute("aria-busy", "false")

    @property
    def session(self) -> str:
        return self.page.url.partition("#/s/")[2]

    # What is there

    @property
    def box(self) -> Locator:
        return self.page.locator("#composer")

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    @property
    def answers(self) -> Locator:
        return self.log.get_by_role("article", name="Answer")

    @property
    def messages(self) -> Locator:
        return self.log.get_by_role("article", name=re.compile("^Your (message|follow-up)$"))

    @property
    def rows(self) -> Locator:
        return self.page.get_by_role("navigation", name="Sessions").get_by_role("listitem")

    @property
    def line(self) -> Locator:
        return self.page.locator(".line")

    def button(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("button", name=name, exact=isinstance(name, str))

    async def said(self) -> list[str]:
        """The messages of people and of the model, in order, as plain text."""
        texts: list[str] = await self.log.locator(".bubble, .markdown").all_inner_texts()
        return [text.strip() for text in texts]

    # What people do

    async def say(self, text: str, *, key: str = "Enter") -> None:
        await self.box.fill(text)
        await self.box.press(key)

    async def until_idle(self) -> None:
        """Wait until every message is answered, and the page shows all of it."""
        await expect(self.log.locator(".outgoing")).to_have_count(0)
        async with self.person.client() as client:
            head = await until(lambda: _head_at_rest(client, self.session))
        await until(lambda: self._is_at(head))
        await expect(self.page.locator(".working")).to_have_count(0)

    async def _is_at(self, head: int) -> bool:
        """Whether everything up to there is drawn."""
        return int(await self.log.get_attribute("data-position") or 0) >= head

    async def until_asked(self) -> Locator:
        card = self.log.locator(".request")
        await expect(card).to_have_count(1)
        return card

    def answering_dialogs(self, *, yes: bool) -> None:
        async def answer(dialog: Dialog) -> None:
            await (dialog.accept() if yes else dialog.dismiss())

        self.page.on("dialog", answer)

    async def keep_picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


async def until(found: Callable[[], Any]) -> Any:
    """Wait for something that no locator can wait for."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while True:
            if value := await found():
                return value
            await asyncio.sleep(0.02)


async def _head_at_rest(client: Client, session: str) -> int | None:
    view = (await client.get(f"/v1/sessions/{session}", params={"limit": 1})).json()["session"]
    return int(view["head"]) if view["status"] == "idle" and view["waiting_messages"] == 0 else None
