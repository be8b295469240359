"""Messages of people who use one session in different ways: all of them see the same conversation."""

import asyncio

import pytest

from tests.wire.ai_sdk.harness import patience, says
from tests.wire.together.surfaces import EventsSurface, Said
from tests.wire.together.world import NAMES, World

pytestmark = pytest.mark.anyio


async def log_of(events: EventsSurface) -> Said:
    """The messages, as the log has them."""
    found: Said = []
    for event in await events.http.events(events.session):
        if event["type"] == "user.message":
            found.append(("user", event["data"]["content"]))
        elif event["type"] == "assistant.message":
            texts = [block["text"] for block in event["data"]["blocks"] if block["type"] == "text"]
            found += [("assistant", text) for text in texts]
    return found


async def test_messages_sent_in_turn_are_seen_by_all_clients_in_the_same_order(world: World) -> None:
    expected: Said = []
    async with world.gathered("in-turn") as gathered:
        for name in NAMES:
            world.model.on(f"Does {name} come through?", says(f"To {name} and to all of you."))
            await gathered.all[name].send(f"Does {name} come through?")
            await gathered.until_said(f"To {name} and to all of you.")
            await gathered.copilot.heard.until_idle(times=NAMES.index(name) + 1)
            expected += [("user", f"Does {name} come through?"), ("assistant", f"To {name} and to all of you.")]
        for name, surface in gathered.all.items():
            assert await surface.said() == expected, name
        assert await log_of(gathered.events) == expected
        await gathered.check_unbroken()


async def test_messages_sent_during_a_turn_are_seen_by_all_clients_in_the_same_order(world: World) -> None:
    world.model.on("May we all talk?", says("Go ahead."))
    for name in NAMES:
        world.model.on(f"And {name}?", says(f"To {name} as well."))
    hold = world.model.hold("May we all talk?", piece=1)
    async with world.gathered("while-it-runs") as gathered:
        sending = asyncio.create_task(gathered.chat.send("May we all talk?"))
        await hold.until_reached()
        await gathered.copilot.send("And copilot?")
        await gathered.events.send("And events?")
        await gathered.terminal.terminal.until("> May we all talk?")
        await gathered.terminal.send("And terminal?")
        await gathered.terminal.terminal.until("· Queued: And terminal?")
        hold.release()
        async with patience():
            await sending
        await gathered.copilot.heard.until_idle()
        said = await log_of(gathered.events)
        assert sorted(text for role, text in said if role == "user") == sorted(
            ["May we all talk?", "And copilot?", "And events?", "And terminal?"]
        )
        await gathered.until_said(said[-1][1])
        assert await gathered.copilot.said() == said
        assert await gathered.events.said() == said
        assert await gathered.chat.said() == said
        # An answer that is being drawn is cut by what is typed here, as on any plain terminal.
        for text in ("May we all talk?", "And copilot?", "And events?"):
            assert gathered.terminal.terminal.text.count(f"> {text}") == 1, text
        await gathered.check_unbroken()
