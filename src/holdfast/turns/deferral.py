"""Deferral of a cancellation: work that must be finished although whoever waits for it was cancelled."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def completed(work: Awaitable[T]) -> tuple[T, asyncio.CancelledError | None]:
    """What came of it, however often whoever waits was cancelled meanwhile; and that, to be raised once it is noted."""
    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # Of the work itself: it is raised below.
    return doing.result(), cancelled
