"""How the programs that run until they are told to end are told: the first signal asks, the second does not. A runtime
that can't go on ends its program too, with an error."""

import asyncio
import os
import signal
import threading
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, report

FAREWELL_SECONDS: Final = 15.0
"""How long a program whose runtime has failed may take to end by itself."""


def heed_signals() -> asyncio.Event:
    """Set by the first signal. The second does not wait for anything: what was acknowledged is on disk."""
    stopping = asyncio.Event()

    def heed(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, heed, number)
    return stopping


async def until_ended(stopping: asyncio.Event, runtime: Runtime) -> None:
    """Wait for `stopping`. Raises the runtime's error if it fails first; then the process ends in a bounded time,
    whatever still holds it up: its leases are free, and others go on with its sessions."""
    told, failed = asyncio.create_task(stopping.wait()), asyncio.create_task(runtime.until_failed())
    try:
        await asyncio.wait((told, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            error = failed.result()
            end_within(FAREWELL_SECONDS, error)
            raise error
    finally:
        told.cancel()
        failed.cancel()


def end_within(seconds: float, error: Exception) -> None:
    """End this process with an error, unless it has ended by then."""

    def end() -> None:
        report(error)
        os._exit(WORLD)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
