"""What the page's figures are measured on: a real Chromium, a real `holdfast serve`, and texts as a model writes them.

The server is on the models' core, as if it were on another machine; the browser, which has several processes at work,
may use every core, as it does on anybody's desk.
"""

import asyncio
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from playwright.async_api import CDPSession, Page, async_playwright

from bench import holdfast_server, long_log, served
from bench.place import Place
from bench.served import Served
from holdfast.events.ids import Owner, SessionId
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Key

NAMES = ("chromium", "chromium-browser", "google-chrome")

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
)
"""The browser has nothing to do but to show the page: it asks nobody for updates."""

PATIENCE_MS = 120_000.0
"""Nothing that is waited for takes nearly as long."""

TASKS = "disabled-by-default-devtools.timeline"
"""Where the browser notes the tasks of its threads."""

LONG = SessionId("long")

ANSWERS = (
    "Yes. It was there all the time, only nobody had looked for it where it was.",
    "There are three ways to do this:\n\n1. **At once**, which is simple.\n2. *Later*, which is cheaper.\n"
    "3. Never: see [the notes](https://example.com/notes).\n\nThe first one is what I would take, because what it costs"
    " is known, and because `retry` does the rest.",
    "This is how it reads now:\n\n```python\ndef settle(orders: list[Order], *, limit: int = 100) -> int:\n"
    '    """The oldest first; how many were settled."""\n    waiting = sorted(orders, key=lambda order: order.time)\n'
    "    for order in waiting[:limit]:\n        order.settle()\n    return min(limit, len(waiting))\n```\n\n"
    "It passes, and `limit` has a name now.",
    "| what | before | after |\n|---|---|---|\n| files | 12 | 9 |\n| lines | 1,420 | 1,105 |\n| tests | 88 | 97 |\n\n"
    "- nothing is lost\n  - not even the comments\n- everything runs",
    "It goes on for a while, as answers do. " * 9 + "\n\n> And then it quotes somebody.\n\nThat is all there is to it.",
)
"""Of several lengths and kinds; every one of them is markdown."""


EMPTY = (
    "<style>body { margin: 0; overflow: hidden } .thread { height: 700px; overflow-y: auto } p { height: 60px }</style>"
    "<div class=thread>" + "<p>A row.</p>" * 2_000 + "</div><textarea id=composer autofocus></textarea>"
)
"""As wide and as high as the other, and with the same names, so that the same can be done to it."""


def chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


async def write_thread(path: Path, messages: int) -> None:
    """A database with one idle session of so many messages, every other of which is an answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    turns = [
        long_log.turn_of(number, f"Answer {number}.\n\n{ANSWERS[number % len(ANSWERS)]}")
        for number in range(messages // 2)
    ]
    store = await SqliteStore.open(path, node="bench")
    try:
        await long_log.write_turns(store, Key(Owner("local"), LONG), turns)
    finally:
        await store.close()


@asynccontextmanager
async def server(place: Place, model_url: str) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        with served.beside(place):
            running = await stack.enter_async_context(holdfast_server.holdfast(place.folder, model_url))
        yield running


@asynccontextmanager
async def tab(place: Place, path: str) -> AsyncIterator[Page]:
    """An empty tab of a browser with a profile of its own."""
    async with async_playwright() as playwright:
        with served.on_all_cores(place):
            browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            context = await browser.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(PATIENCE_MS)
            yield await context.new_page()
        finally:
            await browser.close()


async def sign_in(page: Page, at: Served) -> None:
    """By the link that the server prints."""
    await page.goto(f"{at.url}/#token={at.token}")
    await page.locator("#composer").wait_for()


async def open_session(page: Page, at: Served, session: str) -> None:
    """Until all of what is read at first is there."""
    await page.goto(f"{at.url}/#/s/{session}")
    await page.locator('[role=log][aria-busy="false"]').wait_for()


async def open_empty(page: Page) -> None:
    """A page of nothing but rows and a box to write in: what the browser itself takes on this machine."""
    await page.set_content(EMPTY)


class Tasks(msgspec.Struct):
    """What the page's own thread did, task by task: scripts, layout and painting, in its processor's time."""

    longest_ms: float = 0.0


@asynccontextmanager
async def tasks_of(tab: Page) -> AsyncIterator[Tasks]:
    """They are known in the end. Unlike a frame, a task is no longer when something else on the machine is at work."""
    browser = tab.context.browser
    assert browser is not None
    session = await browser.new_browser_cdp_session()
    over: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    session.on("Tracing.tracingComplete", lambda event: over.set_result(event))
    wanted = {"includedCategories": [TASKS], "excludedCategories": ["*"]}
    await session.send("Tracing.start", {"transferMode": "ReturnAsStream", "traceConfig": wanted})
    found = Tasks()
    yield found
    await session.send("Tracing.end")
    found.longest_ms = _longest_task(await _read(session, (await over)["stream"]))


async def _read(session: CDPSession, handle: str) -> list[dict[str, Any]]:
    pieces: list[str] = []
    while True:
        piece = await session.send("IO.read", {"handle": handle, "size": 1 << 22})
        pieces.append(piece["data"])
        if piece["eof"]:
            events: list[dict[str, Any]] = msgspec.json.decode("".join(pieces))["traceEvents"]
            return events


def _longest_task(events: list[dict[str, Any]]) -> float:
    """Of the process that did most: a browser has more than one that could show a page."""
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name" and _is_main(event)}
    taken: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in named:
            taken[event["pid"]].append(event.get("tdur", 0) / 1000)
    return max(max(taken.values(), key=sum))


def _is_main(event: dict[str, Any]) -> bool:
    return bool(event["args"]["name"] == "CrRendererMain")
