"""How the programs that run until they are told to end are told: the first signal asks, the second does not."""

import asyncio
import os
import signal


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
