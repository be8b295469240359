"""Deferral of a cancellation: work that must complete although the task that waits for it was cancelled."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def defer_cancellation(work: Awaitable[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Wait until the work completes, however often the caller is cancelled meanwhile. Returns the result and the
    cancellation, which the caller raises once it has recorded the result."""
    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # The work itself failed: `result()` below raises its error.
    return doing.result(), cancelled
