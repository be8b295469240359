"""The event loop of the processes that Holdfast itself starts: uvloop, whose queues at a high load are far shorter.

Whoever embeds Holdfast brings a loop of their own; any asyncio loop does.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
