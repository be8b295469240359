"""The end of a store that can't write any more though its process lives: the one thread, or task, that commits has
failed. Every call raises from then on, and leases are let go of once the work under them has been broken off."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.store.errors import StoreUnavailable

STOP_SECONDS: Final = 5.0
"""How long the work under the leases of a dead store may take to end. Less than a lease lasts unrenewed."""

OnWriterFailure = Callable[[StoreUnavailable], Awaitable[None]]
"""Called once, on the event loop, when a store has died. It returns when nothing works under the store's leases."""

log = logging.getLogger(__name__)


def writer_died() -> StoreUnavailable:
    """The error of every call to a dead store."""
    return StoreUnavailable(
        "store_writer_died",
        "The part of this process that writes to the database has failed; its log says why. Start the process again: "
        "what was accepted before is kept.",
    )


async def stop_leased_work(on_writer_failure: OnWriterFailure | None, error: StoreUnavailable) -> None:
    """Wait until the work under the store's leases has ended, but not for ever."""
    if on_writer_failure is None:
        return
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await on_writer_failure(error)
    except Exception:
        log.exception("work under the leases of a dead store was not broken off in time")
