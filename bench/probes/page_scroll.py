"""A session of thousands of messages is scrolled from its end to its beginning and back, in a real browser.

It goes as fast as a phone flings: the browser itself makes the events. What lies further back is
fetched meanwhile. A frame is the time between two callbacks of `requestAnimationFrame`: whatever holds up the page
counts, also a machine that is busy elsewhere for a moment. So the journey is cut into parts, each has a longest frame,
and the median of those is judged; the longest of all is shown beside it. On the way, an empty page in the same browser
is scrolled for parts that are as long: no page is smoother than that one. The longest task of the page's thread is
measured as well, in time of the processor: all that the page does between two frames, or part of it. That is noted by
the browser, which has its price, and so on another way up.
"""

import itertools
import shutil
import statistics
import time
from typing import Any

import msgspec
from playwright.async_api import CDPSession, Page

from bench import holdfast_server, page
from bench.place import Place

EVERY_SO_MANY_RUNS = 7
"""The journey takes about three minutes, and is made of ten thousand frames."""

PIXELS_PER_SECOND = 8_000
"""Twelve screens in each second, the fastest that a phone flings. Nobody can read a word of it."""

GESTURE_PIXELS = 8_000
"""Scrolled in one go; then it is looked whether the end was reached."""

EMPTY_GESTURES = 6
"""On an empty page, in each direction: less than there is of it."""

PARTS = 7
"""Of as many frames each."""

EMPTY_PARTS = 3
"""Of the empty page: one half-way, the others at the end."""

START = """() => {
  const box = document.querySelector(".thread");
  const note = { frames: [], looks: 0, blank: 0, isOver: false };
  const view = box.getBoundingClientRect();
  const isBlank = () => {
    const at = document.elementFromPoint(view.left + view.width / 2, view.top + view.height / 2);
    return at?.matches(":is(.part, .stretch):empty") ?? false;
  };
  let last = null;
  const frame = () => {
    const now = performance.now();
    if (last !== null) note.frames.push(now - last);
    last = now;
    // To look takes time of the frame, so that it is not done in all of them.
    if (note.frames.length % 8 === 0) {
      note.looks += 1;
      if (isBlank()) note.blank += 1;
    }
    if (!note.isOver) requestAnimationFrame(frame);
  };
  globalThis.measured = note;
  requestAnimationFrame(frame);
}"""

WHERE = """() => {
  const box = document.querySelector(".thread");
  const first = [...document.querySelectorAll(".bubble")].find((each) => each.textContent === "Question 0");
  return {
    isAtTop: box.scrollTop < 1 && first !== undefined,
    isAtBottom: box.scrollHeight - box.scrollTop - box.clientHeight < 2,
    height: box.scrollHeight,
  };
}"""

STOP = """() => {
  globalThis.measured.isOver = true;
  return globalThis.measured;
}"""


async def prepare(place: Place) -> None:
    if page.chromium() is not None:
        await page.write_thread(place.prepared / "holdfast.db", place.size.page_messages)


async def measure(place: Place) -> dict[str, float]:
    """Nothing where there is no browser."""
    path = page.chromium()
    if path is None or place.run % EVERY_SO_MANY_RUNS:
        return {}
    data = holdfast_server.data_of(place.folder)
    shutil.copytree(place.prepared, data)
    async with page.server(place, place.model_url) as server, page.tab(place, path) as tab:
        await page.sign_in(tab, server)
        started = time.perf_counter()
        await page.open_session(tab, server, page.LONG)
        opened = (time.perf_counter() - started) * 1000
        figures = await _there_and_back(tab, await tab.context.new_page())
        await tab.reload()
        await page.open_session(tab, server, page.LONG)
        async with page.tasks_of(tab) as tasks:
            await _some_way_up(tab, place.size.page_traced)
    return {"page_open": opened, "page_scroll_task": tasks.longest_ms, **figures}


async def _there_and_back(tab: Page, empty: Page) -> dict[str, float]:
    await page.open_empty(empty)
    up = await _all_the_way(tab, GESTURE_PIXELS, "isAtTop")
    part = -(-2 * len(up.frames) // PARTS)
    none = [await _empty(empty, part)]
    down = await _all_the_way(tab, -GESTURE_PIXELS, "isAtBottom")
    none += [await _empty(empty, part) for _ in range(EMPTY_PARTS - 1)]
    frames = [*up.frames, *down.frames]
    ordered = sorted(frames)
    return {
        "page_scroll_frame": _longest(frames),
        "page_scroll_empty": statistics.median(none),
        "page_scroll_worst": ordered[-1],
        "page_scroll_empty_worst": max(none),
        "page_scroll_p99": ordered[len(ordered) * 99 // 100],
        "page_scroll_blank": (up.blank + down.blank) / (up.looks + down.looks) * 100,
        "page_scroll_speed": (up.pixels + down.pixels) / (up.seconds + down.seconds),
    }


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """All the way up, or down."""

    frames: list[float]
    blank: int
    looks: int
    pixels: float
    seconds: float


async def _all_the_way(tab: Page, distance: int, until: str) -> Way:
    await tab.bring_to_front()
    browser = await tab.context.new_cdp_session(tab)
    await tab.evaluate(START)
    started = time.perf_counter()
    where = await _scroll(tab, browser, distance, until)
    taken = time.perf_counter() - started
    found: dict[str, Any] = await tab.evaluate(STOP)
    await browser.detach()
    return Way(
        frames=found["frames"], blank=found["blank"], looks=found["looks"], pixels=where["height"], seconds=taken
    )


async def _some_way_up(tab: Page, gestures: int) -> None:
    browser = await tab.context.new_cdp_session(tab)
    for _ in range(gestures):
        await _turn_wheel(browser, GESTURE_PIXELS)
        if (await tab.evaluate(WHERE))["isAtTop"]:
            return


async def _scroll(tab: Page, browser: CDPSession, distance: int, until: str) -> dict[str, Any]:
    where: dict[str, Any] = await tab.evaluate(WHERE)
    while not where[until]:
        await _turn_wheel(browser, distance)
        where = await tab.evaluate(WHERE)
    return where


async def _turn_wheel(browser: CDPSession, distance: int) -> None:
    await browser.send(
        "Input.synthesizeScrollGesture",
        {
            "x": 700,
            "y": 400,
            "yDistance": distance,
            "speed": PIXELS_PER_SECOND,
            "gestureSourceType": "mouse",
            "preventFling": True,
        },
    )


def _longest(frames: list[float]) -> float:
    """The median of the longest of each part."""
    size = -(-len(frames) // PARTS)
    return statistics.median(max(frames[at : at + size]) for at in range(0, len(frames), size))


async def _empty(tab: Page, frames: int) -> float:
    """The longest of so many frames of a page where nothing is to be done."""
    await tab.bring_to_front()
    browser = await tab.context.new_cdp_session(tab)
    await tab.evaluate(START)
    for number in itertools.count():
        is_down = number // EMPTY_GESTURES % 2 == 0
        await _turn_wheel(browser, -GESTURE_PIXELS if is_down else GESTURE_PIXELS)
        if await tab.evaluate("() => globalThis.measured.frames.length") >= frames:
            break
    found: dict[str, Any] = await tab.evaluate(STOP)
    await browser.detach()
    return float(max(found["frames"][:frames]))
