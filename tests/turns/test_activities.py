"""Activities beside the loop: `cancel` returns only when they have ended."""

import asyncio

import pytest

from holdfast.turns.activities import Activities

pytestmark = pytest.mark.anyio


async def test_a_second_cancellation_does_not_shorten_the_wait_for_activities_that_the_first_one_ends() -> None:
    """A process that can't renew and is then stopped cancels the same session twice."""
    activities = Activities(asyncio.Event())
    started, ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    has_ended = False

    async def clean_up_slowly() -> None:
        nonlocal has_ended
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()
            has_ended = True

    activities.start("tool", clean_up_slowly())
    await started.wait()
    letting_go = asyncio.create_task(activities.cancel())
    await ending.wait()
    letting_go.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not letting_go.done(), "the tool still runs"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await letting_go
    assert has_ended
    assert activities.running == frozenset()
