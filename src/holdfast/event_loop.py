"""The event loop of the processes that Holdfast itself starts: uvloop, whose queues are far shorter at a high load.

A program that embeds Holdfast runs it on its own loop; any asyncio loop works.
"""

import asyncio
import ctypes
import gc
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")

TRIM_SECONDS: Final = (0.3, 1.0, 5.0)
"""After the start of a process: when it has imported what it serves with, and when first calls imported the rest."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, as `asyncio.run` does. Objects that exist already, such as all modules, are never
    collected: searching them would stop the loop for ten milliseconds in each full collection."""
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for seconds in TRIM_SECONDS:
            runner.get_loop().call_later(seconds, _return_free_memory)
        return runner.run(main)


def _return_free_memory() -> None:
    """Give the free parts of the heap back to the system: reading and compiling modules leaves megabytes of them. Only
    glibc keeps them, and only it has the function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
