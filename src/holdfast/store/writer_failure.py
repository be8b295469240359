"""The failure of a store's one writer: the thread, or task, that commits has died although the process lives.

From then on every call of the store raises, and its leases are given up once the work under them has stopped."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.store.errors import StoreUnavailable

STOP_SECONDS: Final = 5.0
"""How long the work under the leases of a failed store may take to stop. Less than a lease lasts without renewal."""

OnWriterFailure = Callable[[StoreUnavailable], Awaitable[None]]
"""Called once, on the event loop, when a store's writer has failed. It returns when no work runs under the store's
leases any more."""

log = logging.getLogger(__name__)


def writer_died() -> StoreUnavailable:
    """The error that every call of a failed store raises."""
    return StoreUnavailable(
        "store_writer_died",
        "The part of this process that writes to the database has failed; its log says why. Start the process again: "
        "what was accepted before is kept.",
    )


async def stop_leased_work(on_writer_failure: OnWriterFailure | None, error: StoreUnavailable) -> None:
    """Wait until the work under the store's leases has stopped, at most `STOP_SECONDS`."""
    if on_writer_failure is None:
        return
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await on_writer_failure(error)
    except Exception:
        log.exception("work under the leases of a dead store was not broken off in time")
