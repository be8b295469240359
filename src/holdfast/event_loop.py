"""The event loop of the processes that Holdfast itself starts: uvloop, whose queues are far shorter at a high load.

A program that embeds Holdfast runs it on its own loop; any asyncio loop works.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
