"""The end of commands and of everything that can be found of them: asked to end, then killed, then looked for again."""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from holdfast.commands.command import ProcessInfo, Runner
from holdfast.commands.loop import SupervisorLoop, Timer
from holdfast.commands.processes import Census, send_signal

KILLED_SECONDS: Final = 2.0
"""For what was killed to be gone. Who hangs in the kernel longer, or forks faster than we look, has escaped."""

MIN_KILLS: Final = 5
"""On a machine that is slow to tell who lives, seconds alone would be no chance."""

SHORTEST_PAUSE_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 0.1

Identity = tuple[int, str]
"""Pid and start: a name can change, and makes nobody another."""

Done = Callable[[tuple[ProcessInfo, ...], tuple[ProcessInfo, ...]], None]


class Terminations:
    """All that are under way. Looks at all processes again and again, for all at once, as long as there are any."""

    def __init__(self, loop: SupervisorLoop) -> None:
        self._loop = loop
        self._under_way: list[Termination] = []
        self._next: Timer | None = None
        self._pause = SHORTEST_PAUSE_SECONDS

    def begin(
        self, runner: Runner, mark: str, *, grace_seconds: float, knows_session: bool, wrapper: str, done: Done
    ) -> None:
        """Tells `done`, later, who ended and who did not."""
        self._under_way.append(Termination(runner, mark, grace_seconds, knows_session, wrapper, done))
        self._pause = SHORTEST_PAUSE_SECONDS
        self._look_in(0)

    def hasten(self, mark: str, grace_seconds: float) -> None:
        """Somebody else wants the same, and perhaps sooner."""
        for killing in self._under_way:
            if killing.mark == mark:
                killing.grace_ends = min(killing.grace_ends, time.monotonic() + grace_seconds)
        self._look_in(0)

    def _look_in(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.after(seconds, self._look)

    def _look(self) -> None:
        began = time.monotonic()
        census = Census()
        self._under_way = [killing for killing in self._under_way if not killing.is_done(census)]
        if self._under_way:
            grace_ends = min(killing.grace_ends for killing in self._under_way)
            pause = min(self._pause, max(grace_ends - began, 2 * SHORTEST_PAUSE_SECONDS))
            # Never more than half of our time: others want to write and to ask.
            self._look_in(max(pause, time.monotonic() - began))
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)


class Termination:
    """The end of one command."""

    def __init__(
        self, runner: Runner, mark: str, grace_seconds: float, knows_session: bool, wrapper: str, done: Done
    ) -> None:
        self._runner = runner
        self.mark = mark
        self._knows_session = knows_session
        self._wrapper = wrapper
        self._done = done
        self._found: dict[Identity, ProcessInfo] = {}
        self._asked = False
        self._asked_wrapper = False
        self._kills = 0
        self.grace_ends = time.monotonic() + grace_seconds

    def is_done(self, census: Census) -> bool:
        living = self._living(census)
        now = time.monotonic()
        if not living or (now > self.grace_ends + KILLED_SECONDS and self._kills >= MIN_KILLS):
            killed = tuple(one for which, one in sorted(self._found.items()) if which not in living)
            self._done(killed, tuple(one for _, one in sorted(living.items())))
            return True
        if now >= self.grace_ends:
            self._kills += 1
            self._signal(living, signal.SIGKILL)
        elif not self._asked:
            self._ask(living)
        return False

    def _ask(self, living: dict[Identity, ProcessInfo]) -> None:
        """Who keeps up a sandbox ends by itself after those inside. If it went first, so would their exit code. But if
        there is nobody inside yet it is asked, and then whoever comes out of it all the same."""
        inside = {which: one for which, one in living.items() if not self._wrapper or one.name != self._wrapper}
        self._asked = bool(inside)
        if not inside and self._asked_wrapper:
            if (self._runner.pid, self._runner.started) not in living:
                self._signal(living, signal.SIGKILL)  # Half a sandbox: it hears nothing, and is no use to anybody.
            return
        self._asked_wrapper = not inside
        asked = inside or living
        # Who is stopped can't hear the first one.
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(asked, number, as_group=len(asked) == len(living))

    def _living(self, census: Census) -> dict[Identity, ProcessInfo]:
        """All of the family that lives, with those that belonged to it when we looked before."""
        members = census.family(self._runner, self.mark, knows_session=self._knows_session)
        # The latest name: a process that was forked is soon another program.
        self._found |= {(one.pid, one.started): one.named() for one in members}
        return {which: one for which, one in self._found.items() if _lives(which, census)}

    def _signal(self, living: dict[Identity, ProcessInfo], number: signal.Signals, *, as_group: bool = True) -> None:
        """The group at once, so that nobody in it can fork out of the way; then one by one who left it, the eldest
        first: a shell must not take its children's end for the end of its work."""
        known = as_group and self._knows_session
        group = {which for which in living if known and _group(which[0]) == self._runner.pid}
        if group:
            try:
                os.killpg(self._runner.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # Those that are left have ended, and were not waited for yet.
        for which in sorted(living.keys() - group):
            send_signal(living[which], number)


def _lives(which: Identity, census: Census) -> bool:
    found = census.living.get(which[0])
    return found is not None and found.started == which[1]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
