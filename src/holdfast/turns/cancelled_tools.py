"""Tools of a session that were cancelled and still run, because they ignore it or take long to clean up.

A turn goes on without them, but the session is not let go of before they have ended or have had their time: until then
no other process can start the same work beside them.
"""

import asyncio
import logging
from typing import Any

from holdfast.turns.deferral import completed

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.0
"""How long a turn waits for a tool or a model call that it cancelled, before it goes on or ends without it."""


class CancelledTools:
    """The cancelled tools of one session. `orphans` collects those that outlive it, for the whole process."""

    def __init__(self, grace_seconds: float, orphans: set[asyncio.Task[Any]]) -> None:
        self._grace_seconds = grace_seconds
        self._orphans = orphans
        self._until: dict[asyncio.Task[Any], float] = {}
        """When the grace of each is over, by the event loop's clock."""

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Ask a tool to end, once: a second cancellation would break into its cleaning up."""
        if task.done() or task in self._until:
            return
        task.cancel()
        self._until[task] = asyncio.get_running_loop().time() + self._grace_seconds
        task.add_done_callback(self._ended)

    async def wait(self, seconds: float) -> None:
        """Give all of them this long to end."""
        if self._until:
            await asyncio.wait(tuple(self._until), timeout=seconds)

    async def wait_out(self, woken: asyncio.Event | None = None) -> bool:
        """Wait until each has ended or had its grace. False: `woken` was set before that. Cancellation of the caller is
        deferred until then, however often it comes."""
        if not self._until:
            return True
        is_over, cancelled = await completed(self._wait_out(woken))
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
            task.exception()  # Nobody waits for it any more.
