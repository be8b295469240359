"""Watches the leftover processes of an ended command until all of them have ended.

Only one process is watched at a time, whatever their number; when no known process is left, a new census looks for
others.
"""

from collections.abc import Callable
from typing import Final

from holdfast.commands.command import CommandRecord, ProcessInfo, Runner
from holdfast.commands.loop import READ, SupervisorLoop, Timer
from holdfast.commands.processes import Census, Notice, exit_notice, is_running

RETRY_SECONDS: Final = 0.5
"""Pause before another try when no descriptor is left to watch with."""

NOT_ENDED: Final = "it was killed but did not end, and still runs"


def family_of(record: CommandRecord, runner: Runner, census: Census, *, knows_session: bool) -> tuple[ProcessInfo, ...]:
    """Returns the live processes of a command. A wrapper that only keeps up a sandbox while something is left in it
    does not count."""
    family = census.family(runner, record.mark, knows_session=knows_session)
    return tuple(one.named() for one in family if not record.wrapper or one.name != record.wrapper)


class Leftovers:
    """Leftover processes of one command. `look` returns those that live now; `on_over` is called once there are
    none."""

    def __init__(
        self, loop: SupervisorLoop, *, look: Callable[[], tuple[ProcessInfo, ...]], on_over: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._look = look
        self._on_over = on_over
        self._living: tuple[ProcessInfo, ...] = ()
        self._notice: Notice | None = None
        self._retry: Timer | None = None

    @property
    def is_over(self) -> bool:
        return not self._living

    def watch(self, known: tuple[ProcessInfo, ...]) -> None:
        """Watches these processes instead of the previous ones. If `known` is empty, `on_over` is not called: the
        caller can see that nothing is left."""
        self._stop()
        self._living = known
        if known:
            # Deferred: `on_over` must not be called before this returns.
            self._retry = self._loop.after(0, self._next)

    def _next(self) -> None:
        self._stop()
        self._living = tuple(one for one in self._living if is_running(one)) or self._look()
        if not self._living:
            self._on_over()
            return
        first = self._living[0]
        self._notice = exit_notice(first.pid)
        if self._notice is None:
            self._retry = self._loop.after(RETRY_SECONDS if is_running(first) else 0, self._next)
        elif is_running(first):
            self._loop.watch(self._notice.fileno(), READ, lambda _: self._next())
        else:
            # It ended just now, and its pid may already belong to another process.
            self._retry = self._loop.after(0, self._next)

    def _stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._notice is not None:
            self._loop.ignore(self._notice.fileno())
            self._notice.close()
            self._notice = None
