"""Timeouts for conditions that must become true. A test that passes never waits for the whole timeout."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


async def until(is_so: Callable[[], bool]) -> None:
    async with patience():
        while not is_so():  # noqa: ASYNC110 - another thread, process or server changes it, so no event is set
            await asyncio.sleep(0.005)
