"""What a held session waits for: its own activities, and whatever is put into its inbox."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.turns import cancelled_tools
from holdfast.turns.deferral import completed
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)


class Activities:
    """The model call or the tools that run beside the loop, by name. The end of each wakes the loop."""

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: set[asyncio.Task[None]] = set()
        """Those that were told to end."""
        self._failures: list[BaseException] = []

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._tasks)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def raise_failures(self) -> None:
        """An activity that failed (it lost the lease, the store is gone) ends the whole session."""
        if self._failures:
            raise self._failures[0]

    def tell_to_end(self) -> None:
        """Tell all of them to end, each once: a second cancellation would break into the way it ends."""
        for task in self._tasks.values():
            if task not in self._told:
                self._told.add(task)
                task.cancel()

    async def cancel(self) -> None:
        """End all of them. One that does not heed its cancellation is left behind: it can't record anything.

        Cancellation of the caller is deferred until then, however often it comes: a lease must not be released while
        what was started under it is still ending."""
        tasks = list(self._tasks.values())
        self.tell_to_end()
        try:
            if tasks:
                (_, left), cancelled = await completed(asyncio.wait(tasks, timeout=cancelled_tools.GIVE_UP_SECONDS))
                for task in left:
                    log.warning("%s was cancelled and goes on all the same", task.get_name())
                if cancelled is not None:
                    raise cancelled
        finally:
            self._tasks.clear()
            self._told.clear()

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._told.discard(task)
        failure = None if task.cancelled() else task.exception()
        if self._tasks.get(name) is not task:
            return  # Left behind.
        del self._tasks[name]
        if failure is not None:
            self._failures.append(failure)
        self._woken.set()


def raise_if_cancelled() -> None:
    """Heed a cancellation of the current activity that the code it called has swallowed: a model or a tool that goes on
    must not write into a session whose turn is over, or that is another's."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def linger(session: HeldSession, *, stay: bool) -> None:
    """Before a session is let go of to wait for people: stay a moment, in case the answer comes at once. But not where
    it takes up the slot that another turn waits for."""
    if not stay:
        return
    waking = asyncio.create_task(session.woken.wait())
    pause = asyncio.create_task(session.clock.sleep(session.bounds.linger_seconds))
    try:
        while not (waking.done() or pause.done()):
            session.others_changed.clear()
            if await session.is_in_the_way():
                return
            others = asyncio.create_task(session.others_changed.wait())
            try:
                await asyncio.wait((waking, pause, others), return_when=asyncio.FIRST_COMPLETED)
            finally:
                others.cancel()
    finally:
        waking.cancel()
        pause.cancel()
        await asyncio.gather(waking, pause, return_exceptions=True)
