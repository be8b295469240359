"""The end of a command and of everything that can be found of it: asked to end, then killed, then looked for again."""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from holdfast.commands.command import Process, Runner
from holdfast.commands.loop import Loop
from holdfast.commands.processes import all_seen, family, send_signal

KILLED_SECONDS: Final = 2.0
"""For what was killed to be gone. Who hangs in the kernel longer, or forks faster than we look, has escaped."""

FIRST_LOOK_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 0.1


class Killing:
    """Tells `done` who ended and who did not. Looks again and again, but only as long as it takes."""

    def __init__(
        self,
        loop: Loop,
        runner: Runner,
        mark: str,
        *,
        grace_seconds: float,
        done: Callable[[tuple[Process, ...], tuple[Process, ...]], None],
    ) -> None:
        self._loop = loop
        self._runner = runner
        self._mark = mark
        self._done = done
        self._found: set[Process] = set()
        self._grace_ends = time.monotonic() + grace_seconds
        self._gives_up = self._grace_ends + KILLED_SECONDS
        self._pause = FIRST_LOOK_SECONDS
        living = self._living()
        if grace_seconds > 0:
            self._signal(living, signal.SIGTERM)
            # Who is stopped can't hear the first one.
            self._signal(living, signal.SIGCONT)
        self._look_again()

    def _look_again(self) -> None:
        living = self._living()
        now = time.monotonic()
        if not living or now > self._gives_up:
            self._done(tuple(sorted(self._found - living, key=_pid)), tuple(sorted(living, key=_pid)))
            return
        if now >= self._grace_ends:
            self._signal(living, signal.SIGKILL)
            self._pause = min(self._pause, 2 * FIRST_LOOK_SECONDS)
        self._loop.after(min(self._pause, max(self._grace_ends - now, FIRST_LOOK_SECONDS)), self._look_again)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _living(self) -> set[Process]:
        """All of the family that lives, with those that belonged to it when we last looked."""
        everybody = all_seen()
        living = {one.named() for one in everybody if not one.has_ended}
        known = {(one.pid, one.started) for one in self._found}
        self._found |= {one.named() for one in family(everybody, self._runner, self._mark)}
        # A name can change, and makes nobody another.
        still = {one for one in living if (one.pid, one.started) in known}
        return (self._found & living) | still

    def _signal(self, living: set[Process], number: signal.Signals) -> None:
        """The group at once, so that nobody in it can fork out of the way; then one by one who left it."""
        if any(_group(one.pid) == self._runner.pid for one in living):
            try:
                os.killpg(self._runner.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # Those that are left have ended, and were not waited for yet.
        for one in living:
            if _group(one.pid) not in (self._runner.pid, None):
                send_signal(one, number)


def _pid(one: Process) -> int:
    return one.pid


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
