"""Ends commands with every process that can be found of them: SIGTERM, then SIGKILL, then another look."""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from holdfast.commands.command import ProcessInfo, Runner
from holdfast.commands.loop import SupervisorLoop, Timer
from holdfast.commands.processes import Census, send_signal

KILLED_SECONDS: Final = 2.0
"""How long killed processes may take to disappear. A process that hangs in the kernel longer, or forks faster than the
census finds it, has escaped."""

MIN_KILLS: Final = 5
"""Kills to send before giving up: on a machine where a census is slow, a time limit alone would give no real chance."""

SHORTEST_PAUSE_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 0.1

Identity = tuple[int, str]
"""Pid and start time. A process may change its name and is still the same."""

Done = Callable[[tuple[ProcessInfo, ...], tuple[ProcessInfo, ...]], None]


class Terminations:
    """All terminations in progress. One repeated census of all processes serves all of them, as long as there are
    any."""

    def __init__(self, loop: SupervisorLoop) -> None:
        self._loop = loop
        self._under_way: list[Termination] = []
        self._next: Timer | None = None
        self._pause = SHORTEST_PAUSE_SECONDS

    def begin(
        self, runner: Runner, mark: str, *, grace_seconds: float, knows_session: bool, wrapper: str, done: Done
    ) -> None:
        """Starts a termination. `done` is called later with the processes that ended and those that did not."""
        self._under_way.append(Termination(runner, mark, grace_seconds, knows_session, wrapper, done))
        self._pause = SHORTEST_PAUSE_SECONDS
        self._look_in(0)

    def hasten(self, mark: str, grace_seconds: float) -> None:
        """Shortens the grace period of a termination in progress, if a second request allows less."""
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
            # Spend at most half of the time on this: clients are waiting to send requests and commands to write.
            self._look_in(max(pause, time.monotonic() - began))
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)


class Termination:
    """The termination of one command."""

    def __init__(
        self, runner: Runner, mark: str, grace_seconds: float, knows_session: bool, wrapper: str, done: Done
    ) -> None:
        self._runner = runner
        self.mark = mark
        self._knows_session = knows_session
        self._wrapper = wrapper
        self._done = done
        self._found: dict[Identity, ProcessInfo] = {}
        self._terminated = False
        self._terminated_wrapper = False
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
        elif not self._terminated:
            self._terminate(living)
        return False

    def _terminate(self, living: dict[Identity, ProcessInfo]) -> None:
        """Sends SIGTERM, to the processes inside a sandbox only: the wrapper ends by itself after them, and if it went
        first, their exit code would be lost. If nothing is inside yet the wrapper gets the signal, and so does any
        process that it still starts."""
        runner = (self._runner.pid, self._runner.started)
        # The runner is outside whatever its name: it is a copy of the supervisor until it has become the wrapper.
        outside = {which for which, one in living.items() if which == runner or one.name == self._wrapper}
        inside = {which: one for which, one in living.items() if not self._wrapper or which not in outside}
        self._terminated = bool(inside)
        if not inside and self._terminated_wrapper:
            if runner not in living:
                self._signal(living, signal.SIGKILL)  # Half a sandbox: it handles no signal, and nothing will use it.
            return
        self._terminated_wrapper = not inside
        targets = inside or living
        # A stopped process can't handle the first signal.
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(targets, number, as_group=len(targets) == len(living))

    def _living(self, census: Census) -> dict[Identity, ProcessInfo]:
        """Returns the live processes of the command, including those found in an earlier census."""
        members = census.family(self._runner, self.mark, knows_session=self._knows_session)
        # Keep the latest name: a forked process soon becomes another program.
        self._found |= {(one.pid, one.started): one.named() for one in members}
        return {which: one for which, one in self._found.items() if _lives(which, census)}

    def _signal(self, living: dict[Identity, ProcessInfo], number: signal.Signals, *, as_group: bool = True) -> None:
        """Signals the group at once, so that no member can fork out of the way; then the processes that left it one by
        one, the oldest first: a shell must not take the end of its children for the end of its work."""
        known = as_group and self._knows_session
        group = {which for which in living if known and _group(which[0]) == self._runner.pid}
        if group:
            try:
                os.killpg(self._runner.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # The remaining members have ended and were not reaped yet.
        for which in sorted(living.keys() - group):
            send_signal(living[which], number)


def _lives(which: Identity, census: Census) -> bool:
    entry = census.living.get(which[0])
    return entry is not None and entry.started == which[1]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
