"""Runs work on large texts in a thread, so that it does not block the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LARGE_CHARACTERS: Final = 500_000
"""Above this size the work takes longer than the switch to a thread and back, and would delay other tasks."""


async def beside_if_large(characters: int, work: Callable[[], T]) -> T:
    """Do the work, in a thread if it processes more than `LARGE_CHARACTERS`. The work must be pure."""
    return await asyncio.to_thread(work) if characters > LARGE_CHARACTERS else work()
