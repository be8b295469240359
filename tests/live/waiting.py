"""Waiting for what must come. No test that passes waits for as long as it may."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


async def until(is_so: Callable[[], bool]) -> None:
    async with patience():
        while not is_so():  # noqa: ASYNC110 - of another thread, process or server: nobody sets an event
            await asyncio.sleep(0.005)
