"""Tools of a session that were cancelled and still run, because they ignore the cancellation or clean up slowly.

A turn goes on without them, but the session is not released before they have ended or used up their grace: until then
no other process can start the same work beside them.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from holdfast.turns.deferral import defer_cancellation

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.0
"""How long a turn waits for a tool or a model call that it cancelled before it continues, or ends, without it."""

PARTS = 4
"""The parts that this time is waited in: a process that stood still uses up one of them at most, and what it cancelled
right before has the others to end."""


async def wait_for_end(tasks: Collection[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Wait for cancelled tasks to end. Returns those that still run when the time is over."""
    pending = set(tasks)
    for _ in range(PARTS):
        if pending:
            _, pending = await asyncio.wait(pending, timeout=GIVE_UP_SECONDS / PARTS)
    return pending


class CancelledTools:
    """The cancelled tools of one session. Tools that outlive its run move to `orphans`, one set per process."""

    def __init__(self, grace_seconds: float, orphans: set[asyncio.Task[Any]]) -> None:
        self._grace_seconds = grace_seconds
        self._orphans = orphans
        self._until: dict[asyncio.Task[Any], float] = {}
        """Cancelled tools that still run, each with the time when its grace ends, by the event loop's clock."""

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a tool, once: a second cancellation would interrupt its cleanup."""
        if task.done() or task in self._until:
            return
        task.cancel()
        self._until[task] = asyncio.get_running_loop().time() + self._grace_seconds
        task.add_done_callback(self._ended)

    async def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for all of them to end."""
        if self._until:
            await asyncio.wait(tuple(self._until), timeout=seconds)

    async def wait_out(self, woken: asyncio.Event | None = None) -> bool:
        """Wait until each tool has ended or used up its grace. Returns False if `woken` was set before that.
        Cancellation of the caller is deferred until then, however often it comes."""
        if not self._until:
            return True
        is_over, cancelled = await defer_cancellation(self._wait_out(woken))
        if cancelled is not None:
            raise cancelled
        return is_over

    async def _wait_out(self, woken: asyncio.Event | None = None) -> bool:
        waking = asyncio.create_task(woken.wait()) if woken is not None else None
        try:
            while self._until:
                last = max(self._until.values()) - asyncio.get_running_loop().time()
                if last <= 0:
                    self._give_up()
                    break
                others = (waking,) if waking is not None else ()
                await asyncio.wait((*self._until, *others), timeout=last, return_when=asyncio.FIRST_COMPLETED)
                if waking is not None and waking.done():
                    return False
        finally:
            if waking is not None:
                waking.cancel()
        return True

    def _give_up(self) -> None:
        for task in self._until:
            log.warning("%s was cancelled and still runs; its session is let go of", task.get_name())
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)
        self._until.clear()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._until.pop(task, None)
        if not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not log it: no caller waits for this task any more.
