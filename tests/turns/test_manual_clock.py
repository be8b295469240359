"""The manual clock: time stands still until a test advances it."""

import asyncio

import pytest

from holdfast.store.clock import Clock
from holdfast.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = (manual := ManualClock(start_ms=5))
    assert (clock.now_ms(), clock.monotonic()) == (5, 0.0)
    await manual.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (1505, 1.5)


async def test_sleepers_wake_in_order_each_at_its_own_time() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleeps(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(sleeps(*who)) for who in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("late", 9.0))]
    await clock.until_sleeping(4)
    await clock.advance(5)
    assert woken == [("a", 1.0), ("b", 1.0), ("c", 3.0)]
    assert (clock.monotonic(), clock.sleeping) == (5.0, 1)
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert clock.sleeping == 0


async def test_a_task_that_sleeps_again_wakes_again_within_the_same_advance() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(2)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticking())
    await clock.until_sleeping()
    await clock.advance(7)
    assert ticks == [2.0, 4.0, 6.0]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_cancelled_sleeper_does_not_block_the_others() -> None:
    clock = ManualClock()
    first, second = (asyncio.create_task(clock.sleep(1)) for _ in range(2))
    await clock.until_sleeping(2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await clock.advance(1)
    await asyncio.wait_for(second, 5)


async def test_a_sleep_of_zero_or_less_only_yields() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.sleeping == 0
