"""The activities of a held session, which run beside its loop, and the pause before the session is released."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.turns import cancelled_tools
from holdfast.turns.deferral import defer_cancellation
from holdfast.turns.held_session import HeldSession

log = logging.getLogger(__name__)


class Activities:
    """The model call or the tool calls that run beside the loop, by name. The end of each one wakes the loop."""

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        """Running activities that were cancelled once."""
        self._failures: list[BaseException] = []

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._tasks)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def raise_failures(self) -> None:
        """Raise the first failure of an activity (lease lost, store gone): it ends the whole run of the session."""
        if self._failures:
            raise self._failures[0]

    def request_end(self) -> None:
        """Cancel all of them without waiting, each once: a second cancellation would interrupt its cleanup."""
        for task in self._tasks.values():
            if task not in self._cancelled:
                self._cancelled.add(task)
                task.cancel()

    async def cancel(self) -> None:
        """Cancel all of them and wait for their end. One that ignores its cancellation is abandoned after a bounded
        time: it can't record anything.

        Cancellation of the caller is deferred until then, however often it comes: a lease must not be released while
        activities that were started under it are still ending."""
        tasks = list(self._tasks.values())
        self.request_end()
        try:
            if tasks:
                abandoned, cancelled = await defer_cancellation(cancelled_tools.wait_for_end(tasks))
                for task in abandoned:
                    log.warning("%s was cancelled and goes on all the same", task.get_name())
                if cancelled is not None:
                    raise cancelled
        finally:
            self._tasks.clear()
            self._cancelled.clear()

    async def cancel_one(self, name: str) -> None:
        """Cancel the activity of that name and wait for its end, as `cancel` does for all of them."""
        task = self._tasks.get(name)
        if task is None:
            return
        if task not in self._cancelled:
            self._cancelled.add(task)
            task.cancel()
        _, cancelled = await defer_cancellation(cancelled_tools.wait_for_end([task]))
        if self._tasks.get(name) is task:
            del self._tasks[name]
            self._cancelled.discard(task)
        if cancelled is not None:
            raise cancelled

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._cancelled.discard(task)
        failure = None if task.cancelled() else task.exception()
        if self._tasks.get(name) is not task:
            return  # Abandoned by `cancel`.
        del self._tasks[name]
        if failure is not None:
            self._failures.append(failure)
        self._woken.set()


def raise_if_cancelled() -> None:
    """Raise a cancellation of the current activity that a model or a tool swallowed: after it, the activity must not
    write into a session whose turn is over, or that another process holds."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def linger(session: HeldSession, *, stay: bool) -> None:
    """Keep a session that waits for people for a moment before it is released, in case the answer comes at once; but
    not while it takes up a slot that another turn waits for."""
    if not stay:
        return
    waking = asyncio.create_task(session.woken.wait())
    pause = asyncio.create_task(session.clock.sleep(session.bounds.linger_seconds))
    try:
        while not (waking.done() or pause.done()):
            session.others_changed.clear()
            if await session.blocks_another_turn():
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
