"""The event loop of the processes that Holdfast itself starts: uvloop, whose queues are far shorter at a high load.

A program that embeds Holdfast runs it on its own loop; any asyncio loop works.
"""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, as `asyncio.run` does. Objects that exist already, such as all modules, are never
    collected: searching them would stop the loop for ten milliseconds in each full collection."""
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
