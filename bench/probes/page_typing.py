"""Somebody types while an answer of markdown, with code and lists, streams into the open session, in a real browser.

What is typed must all be there in the end. The delay of a key is the time from the event's own time stamp, which the
browser gave it before the page was asked, until the frame after it has been handed over to be painted. People take what
comes within a tenth of a second for the doing of their own hand, so that this is the bar for all but one key in a
hundred; what an empty page takes for the same keys, in the same browser, is shown beside it.
"""

import asyncio
import itertools
import random
from typing import Any

from playwright.async_api import Page

from bench import page
from bench.calibration import percentile
from bench.place import Place
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer

EVERY_SO_MANY_RUNS = 7
"""It takes a minute."""

TOKENS_PER_SECOND = 200

KEY_SECONDS = (0.06, 0.16)
"""Between two keys of somebody who types well."""

EMPTY_SHARE = 6
"""An empty page is typed into for a sixth of the time."""

WORDS = "while it goes on I write down what I want to have done next "

START = """() => {
  const delays = [];
  addEventListener("keydown", (event) => {
    const painted = new MessageChannel();
    painted.port1.onmessage = () => delays.push(performance.now() - event.timeStamp);
    requestAnimationFrame(() => painted.port2.postMessage(null));
  }, { capture: true });
  globalThis.delays = delays;
}"""

STOP = """() => ({ delays: globalThis.delays, typed: document.querySelector("#composer").value })"""


async def measure(place: Place) -> dict[str, float]:
    """Nothing where there is no browser."""
    path = page.chromium()
    if path is None or place.run % EVERY_SO_MANY_RUNS:
        return {}
    tokens = int(place.size.page_stream_seconds * TOKENS_PER_SECOND)
    pace = Pace()
    async with (
        ModelServer(_script(tokens), gate=pace.wait) as model,
        page.server(place, model.url) as server,
        page.tab(place, path) as tab,
    ):
        await page.sign_in(tab, server)
        async with page.tasks_of(tab) as tasks:
            figures = await _type_along(tab, place.size.page_stream_seconds)
            figures["page_stream_rate"] = pace.per_second()
        figures["page_input_task"] = tasks.longest_ms
        await tab.locator(".assistant.whole").wait_for()
        figures["page_input_empty"] = await _type_into_nothing(tab, place.size.page_stream_seconds / EMPTY_SHARE)
        return figures


def _script(tokens: int) -> Script:
    """A long answer of so many words."""
    parts = (f"Part {number}.\n\n{text}\n\n" for number, text in enumerate(itertools.cycle(page.ANSWERS)))
    words = (word for part in parts for word in part.split(" "))
    text = " ".join(itertools.islice(words, tokens))
    return Script((Rule((Reply(text=text, usage=TokenUsage(input_tokens=5, output_tokens=tokens)),)),))


class Pace:
    """Lets a piece of an answer pass when it is due. Whoever comes late is not held up further."""

    def __init__(self) -> None:
        self._started = 0.0
        self._passed = 0

    async def wait(self, piece: int) -> None:
        now = asyncio.get_running_loop().time()
        if piece == 0:
            self._started = now
        await asyncio.sleep(max(0.0, self._started + piece / TOKENS_PER_SECOND - now))
        self._passed = piece + 1

    def per_second(self) -> float:
        """Until now."""
        return self._passed / (asyncio.get_running_loop().time() - self._started)


async def _type_along(tab: Page, seconds: float) -> dict[str, float]:
    await tab.locator("#composer").fill("Tell me all of it.")
    await tab.keyboard.press("Enter")
    await tab.locator(".assistant .markdown").wait_for()
    await tab.evaluate(START)
    typed = await _type(tab, seconds - 1)
    found: dict[str, Any] = await tab.evaluate(STOP)
    delays: list[float] = found["delays"]
    return {
        "page_input_lost": _missing(typed, found["typed"]) / len(typed) * 100,
        "page_input_p99": percentile(delays, 99),
        "page_input_p50": percentile(delays, 50),
    }


async def _type_into_nothing(tab: Page, seconds: float) -> float:
    await page.open_empty(tab)
    await tab.locator("#composer").focus()
    await tab.evaluate(START)
    await _type(tab, seconds)
    await tab.wait_for_function("globalThis.delays.length > 0")
    found: dict[str, Any] = await tab.evaluate(STOP)
    return percentile(found["delays"], 99)


def _missing(typed: str, found: str) -> int:
    """How many of the characters are not there in their order."""
    there = 0
    for character in typed:
        there += found[there : there + 1] == character
    return len(typed) - there


async def _type(tab: Page, seconds: float) -> str:
    """As long as that; what was typed."""
    loop, chance = asyncio.get_running_loop(), random.Random(1)
    ends = loop.time() + seconds
    typed = ""
    for character in itertools.cycle(WORDS):
        await tab.keyboard.press("Space" if character == " " else character)
        typed += character
        if loop.time() > ends:
            return typed
        await asyncio.sleep(chance.uniform(*KEY_SECONDS))
    return typed
