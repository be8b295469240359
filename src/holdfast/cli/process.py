"""The process of a command: its event loop, its signals, its exit status.

A program that serves until it is stopped drains on the first signal and ends at once on the second. It ends with an
error when its runtime fails.
"""

import asyncio
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast import event_loop
from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, report

FAREWELL_SECONDS: Final = 15.0
"""How long a program whose runtime has failed may take to end by itself."""


def run_to_end(work: Callable[[], Awaitable[int | None]]) -> int:
    """Run one command and return its exit status. No log line and no traceback reaches the terminal."""
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to fail
    try:
        code = event_loop.run(_awaited(work)) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence_stdout()  # or Python would complain once more when it flushes at the end
        return 141
    except Exception as error:
        return report(error)


async def _awaited(work: Callable[[], Awaitable[int | None]]) -> int | None:
    return await work()


def print_line(line: str) -> None:
    """Print a line of a program that keeps running when the reader of its output has left."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        silence_stdout()


def silence_stdout() -> None:
    """Send further output to /dev/null, because its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watch_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets. The second ends the process at once, which loses nothing:
    everything that was acknowledged is on disk."""
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopping


async def until_stopped(stopping: asyncio.Event, runtime: Runtime) -> None:
    """Wait for `stopping`. If the runtime fails first, raise its error and bound the time that the process may still
    take to end: its leases are free, and other processes continue its sessions."""
    stopped, failed = asyncio.create_task(stopping.wait()), asyncio.create_task(runtime.until_failed())
    try:
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            error = failed.result()
            end_within(FAREWELL_SECONDS, error)
            raise error
    finally:
        stopped.cancel()
        failed.cancel()


def end_within(seconds: float, error: Exception) -> None:
    """End this process with an error, unless it has ended by then."""

    def end() -> None:
        report(error)
        os._exit(WORLD)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
