"""One approval, asked for on every surface of a session and given on one of them."""

import asyncio
from pathlib import Path

import pytest

from tests.wire.ai_sdk.harness import calls, says
from tests.wire.together.world import NAMES, World

pytestmark = pytest.mark.anyio


async def test_the_npm_client_takes_part(packages: "Path | str") -> None:
    """Where it can't be had, the same is tested by hand, over plain HTTP."""
    if isinstance(packages, str):
        pytest.skip(packages)


@pytest.mark.parametrize("answering", NAMES)
async def test_an_approval_that_is_given_on_one_surface_is_seen_on_all_and_the_tool_runs_once(
    world: World, tmp_path: Path, answering: str
) -> None:
    words, count = f"Count, and ask at {answering}", tmp_path / "count"
    world.model.on(words, calls("exec", command=f"echo ran >> {count}"), says(f"Counted by {answering}."))
    async with world.gathered(f"approved-{answering}") as gathered:
        await gathered.chat.send(words)
        request_id = (await gathered.events.until_event("permission.requested"))["requestId"]
        for surface in gathered.all.values():
            await surface.until_asked(request_id)
        assert not count.exists()
        await gathered.all[answering].approve(request_id)
        await gathered.until_said(f"Counted by {answering}.")
        for name, surface in gathered.all.items():
            assert await surface.approvals() == 1, name
        assert not await gathered.copilot.tries_to_approve(request_id)
        assert (await gathered.events.tries_to_approve(request_id)).status_code == 409
        await gathered.check_unbroken()
    assert count.read_text() == "ran\n"


async def test_of_approvals_that_are_given_on_several_surfaces_at_once_one_counts(world: World, tmp_path: Path) -> None:
    count = tmp_path / "count"
    world.model.on("Count for all", calls("exec", command=f"echo ran >> {count}"), says("Counted for all."))
    async with world.gathered("approved-by-all") as gathered:
        asked = await gathered.chat.chat.say("Count for all")
        request_id = (await gathered.events.until_event("permission.requested"))["requestId"]
        await gathered.terminal.until_asked(request_id)
        by_copilot, by_http, _ = await asyncio.gather(
            gathered.copilot.tries_to_approve(request_id),
            gathered.events.tries_to_approve(request_id),
            gathered.chat.chat.approve(asked),
        )
        assert not (by_copilot and by_http.status_code == 200)
        await gathered.until_said("Counted for all.")
        for name, surface in gathered.all.items():
            assert await surface.approvals() == 1, name
        await gathered.check_unbroken()
    assert count.read_text() == "ran\n"
