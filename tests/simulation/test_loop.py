"""The virtual loop: time jumps, places keep their own order, and the dead do nothing."""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any

import pytest

from proof.simulation.loop import PLACE, Place, Stuck, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(random.Random(1))
    yield made
    made.revive()
    left = [task for task in made.tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        made.run_until_complete(asyncio.wait(left))
    made.close()


def spawn(loop: VirtualLoop, place: Place, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    context = Context()
    context.run(PLACE.set, place)
    task: asyncio.Task[None] = loop.create_task(work, context=context)
    return task


def test_time_passes_only_when_nothing_can_run(loop: VirtualLoop) -> None:
    async def sleep() -> None:
        await asyncio.sleep(3600)

    loop.run_until_complete(sleep())
    assert loop.time() == 3600


def test_a_loop_that_waits_for_nothing_is_detected(loop: VirtualLoop) -> None:
    with pytest.raises(Stuck, match="nobody can run"):
        loop.run_until_complete(loop.create_future())


def test_a_loop_that_makes_no_progress_is_detected(loop: VirtualLoop) -> None:
    async def turn() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="in circles"):
        loop.run_until_complete(turn())


def test_a_place_keeps_its_order_and_places_are_mixed() -> None:
    orders = set()
    for seed in range(20):
        loop = VirtualLoop(random.Random(seed))
        told: list[str] = []
        for name in ("a", "b"):
            context = Context()
            context.run(PLACE.set, Place(name))
            for number in range(3):
                loop.call_soon(told.append, f"{name}{number}", context=context)
        loop.call_later(1, loop.stop)
        loop.run_forever()
        loop.close()
        assert [line for line in told if line[0] == "a"] == ["a0", "a1", "a2"]
        orders.add(tuple(told))
    assert len(orders) > 5


def test_a_dead_place_does_not_even_clean_up(loop: VirtualLoop) -> None:
    place, told = Place("p"), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(2)
            told.append("worked")
        finally:
            told.append("cleaned up")

    spawn(loop, place, work())
    loop.call_later(1, setattr, place, "state", "dead")
    loop.run_until_complete(asyncio.sleep(5))
    assert told == []


def test_a_paused_place_goes_on_where_it_stood_and_late(loop: VirtualLoop) -> None:
    place, woken = Place("p"), list[float]()

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            woken.append(loop.time())

    spawn(loop, place, work())
    loop.call_later(1.5, setattr, place, "state", "paused")
    loop.call_later(10, loop.resume, place)
    loop.run_until_complete(asyncio.sleep(20))
    assert woken == [1, 10, 11]
