"""A thread of two thousand messages: quick to open, all of it there, and steady before one's eyes."""

import re
from typing import Any

import msgspec
import pytest
from playwright.async_api import expect

from tests.http.world import Client
from tests.web.looking import Person, Tab, until
from tests.wire.ai_sdk.harness import Model, says

pytestmark = pytest.mark.anyio

TURNS = 1_000
MOST_ELEMENTS = 6_000
"""The most elements in the page at once, for a thread with several times as many."""


async def long_session(client: Client, model: Model) -> str:
    """One real turn, told a thousand times over, and taken in as an import."""
    model.on("question", says("An answer."))
    session = await client.make()
    await client.say(session, "question")
    document = msgspec.json.decode((await client.get(f"/v1/sessions/{session}/export")).content)
    events: list[dict[str, Any]] = document["events"]
    start = next(index for index, event in enumerate(events) if event["type"] == "holdfast.turn_started")
    end = next(index for index, event in enumerate(events) if event["type"] == "holdfast.turn_ended")
    turn = msgspec.json.encode(events[start : end + 1]).decode()
    told = events[:start]
    for number in range(TURNS):
        again = re.sub(r'"(id|\w*[iI]d)":"([^"]{1,55})"', rf'"\1":"\2-{number}"', turn)
        again = again.replace('"question"', f'"question {number}"').replace('"An answer."', f'"{answer(number)}"')
        told += msgspec.json.decode(again)
    for position, event in enumerate(told, start=1):
        event["position"] = position
    document["events"] = told
    made = await client.post("/v1/sessions/import", content=msgspec.json.encode(document))
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def answer(number: int) -> str:
    """Of very different lengths, so that nobody can guess the height of what is not drawn."""
    return " ".join([f"Answer {number}."] + ["It goes on and on."] * (number * 7 % 11))


async def test_a_long_thread_is_drawn_in_part_and_read_upwards_without_holes_or_jumps(
    person: Person, client: Client, model: Model
) -> None:
    session = await long_session(client, model)
    tab = await person.tab()
    await tab.page.set_viewport_size({"width": 1280, "height": 4_000})
    await tab.open(session)
    await expect(tab.answers.last).to_contain_text(f"Answer {TURNS - 1}.")
    assert await elements(tab) < MOST_ELEMENTS
    await stays_at_the_bottom(tab)
    seen = await read_upwards(tab)
    assert seen == list(range(TURNS)), sorted(set(range(TURNS)) - set(seen))[:20]
    assert await elements(tab) < MOST_ELEMENTS
    await tab.button(re.compile("Latest")).click()
    await expect(tab.answers.last).to_contain_text(f"Answer {TURNS - 1}.")
    await stays_at_the_bottom(tab)


async def elements(tab: Tab) -> int:
    return int(await tab.page.evaluate("document.querySelectorAll('*').length"))


async def stays_at_the_bottom(tab: Tab) -> None:
    async def is_there() -> bool:
        return bool(await tab.page.evaluate(AT_BOTTOM))

    await until(is_there)


AT_BOTTOM = """() => {
  const box = document.querySelector(".thread");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 2;
}"""

READ_UPWARDS = """async () => {
  const box = document.querySelector(".thread");
  const seen = new Set();
  const jumps = [];
  const frame = () => new Promise(requestAnimationFrame);
  const isSeen = (element) => {
    const at = element.getBoundingClientRect(), view = box.getBoundingClientRect();
    return at.bottom > view.top && at.top < view.bottom;
  };
  const visible = () => [...box.querySelectorAll(".bubble")].filter(isSeen);
  const isBlank = () => [...box.querySelectorAll(":is(.part, .stretch):empty")].some(isSeen);
  const numberOf = (bubble) => Number(/\\d+/.exec(bubble.textContent)[0]);
  const note = () => visible().forEach((bubble) => seen.add(numberOf(bubble)));
  let idle = 0;
  while (isBlank()) await frame();
  note();
  while (!seen.has(0) && idle < 600) {
    const before = Math.min(...seen);
    // Between two frames, as a key or a wheel does it: the page hears of it before it is laid out again.
    await new Promise((resolve) => setTimeout(resolve));
    const shown = visible()[0];
    const top = shown?.getBoundingClientRect().top;
    const wanted = Math.min(box.clientHeight * 0.9, box.scrollTop);
    box.scrollTop -= wanted;
    for (let frames = 0; frames < 3 || (isBlank() && frames < 300); frames += 1) await frame();
    // What was before one's eyes has moved by as much as was scrolled, and not by more.
    // At the very top, less than was guessed may be left to scroll.
    if (shown?.isConnected && box.scrollTop >= 1) {
      const moved = shown.getBoundingClientRect().top - top;
      if (Math.abs(moved - wanted) > 2) jumps.push([numberOf(shown), Math.round(moved), Math.round(wanted)]);
    }
    note();
    idle = Math.min(...seen) < before ? 0 : idle + 1;
  }
  while (isBlank()) await frame();
  note();
  return { seen: [...seen].sort((a, b) => a - b), jumps };
}"""


async def read_upwards(tab: Tab) -> list[int]:
    """Page by page to the very first message; which questions came by."""
    found = await tab.page.evaluate(READ_UPWARDS)
    assert found["jumps"] == [], str(found["jumps"])
    return list(found["seen"])


async def test_sticking_to_the_bottom_yields_to_who_reads_above(person: Person, client: Client, model: Model) -> None:
    model.on("speak at length", says("\n\n".join(f"Paragraph {number}." for number in range(120))))
    model.on("go on", says("\n\n".join(f"Further {number}." for number in range(60)), chunk_size=20))
    tab = await person.tab()
    await tab.say("speak at length")
    await tab.until_idle()
    await stays_at_the_bottom(tab)
    held = model.hold("go on", piece=12)
    await tab.say("go on")
    await held.until_reached()
    await expect(tab.answers.last).to_contain_text("Further 5.")
    await stays_at_the_bottom(tab)
    await tab.page.mouse.move(700, 400)
    await tab.page.mouse.wheel(0, -1_500)
    await expect(tab.button(re.compile("Latest"))).to_be_visible()
    before = await tab.page.evaluate("document.querySelector('.thread').scrollTop")
    held.release()
    await tab.until_idle()
    await expect(tab.answers.last).to_contain_text("Further 59.")
    assert await tab.page.evaluate("document.querySelector('.thread').scrollTop") == before
    await tab.button(re.compile("Latest")).click()
    await stays_at_the_bottom(tab)
    await expect(tab.button(re.compile("Latest"))).to_have_count(0)
    await tab.button("Timeline").click()
    await tab.page.set_viewport_size({"width": 1150, "height": 500})
    await stays_at_the_bottom(tab)
