"""Work that takes long because there is much text in it, done where it keeps nobody else from the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

LARGE_CHARACTERS: Final = 500_000
"""What is made from more text than this takes longer than the way to a thread and back, and others would notice."""


async def beside_if_large(characters: int, work: Callable[[], T]) -> T:
    """Do it: in a thread, if it is made from that much text. It must be pure."""
    return await asyncio.to_thread(work) if characters > LARGE_CHARACTERS else work()
