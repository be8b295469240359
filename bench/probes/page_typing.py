"""Somebody types while an answer of markdown, with code and lists, streams into the open session, in a real browser.

What is typed must all be there in the end. The delay of a key is the time from the event's own time stamp, which the
browser gave it before the page was asked, until the frame after it has been handed over to be painted.
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
    typed = await _type(tab, seconds)
    found: dict[str, Any] = await tab.evaluate(STOP)
    if found["typed"] != typed:
        raise RuntimeError(f"{len(typed)} characters were typed, and this is there: {found['typed']!r}")
    delays: list[float] = found["delays"]
    return {
        "page_input_p99": percentile(delays, 99),
        "page_input_p50": percentile(delays, 50),
    }


async def _type(tab: Page, seconds: float) -> str:
    """As long as the answer comes in; what was typed."""
    loop, chance = asyncio.get_running_loop(), random.Random(1)
    ends = loop.time() + seconds - 1
    typed = ""
    for character in itertools.cycle(WORDS):
        await tab.keyboard.press("Space" if character == " " else character)
        typed += character
        if loop.time() > ends:
            return typed
        await asyncio.sleep(chance.uniform(*KEY_SECONDS))
    return typed
