"""A command whose supervisor died: it may still run, but its output goes nowhere and its exit code to nobody.

The next supervisor sees it end, and says that it was lost.
"""

import time
from collections.abc import Callable
from typing import Final

from holdfast.commands.command import Asked, Outcome, Process, Reason, Runner, Status
from holdfast.commands.folder import CommandFolder
from holdfast.commands.loop import READ, Loop
from holdfast.commands.output import OutputReader
from holdfast.commands.processes import boot_id, exit_notice, is_alive

RETRY_SECONDS: Final = 0.5

GONE: Final = "the supervisor that watched it died; it ended unseen, and what it wrote since then is lost"
REBOOTED: Final = "the machine was restarted while it ran, or it ran on another machine"
NEVER_RAN: Final = "whoever was about to start it died before it ran"


def what_became(asked: Asked, runner: Runner | None) -> tuple[Reason, str]:
    """Of a command without an outcome that does not run."""
    if asked.boot != boot_id():
        return "lost", REBOOTED
    if runner is None:
        return "not_started", NEVER_RAN
    return "lost", GONE


class Unwatched:
    def __init__(
        self, loop: Loop, folder: CommandFolder, asked: Asked, runner: Runner, *, on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self.folder = folder
        self.asked = asked
        self.runner: Runner | None = runner
        self.outcome: Outcome | None = None
        self.reason: Reason = "lost"
        self.killed: tuple[Process, ...] = ()
        self.escaped: tuple[Process, ...] = ()
        self.holds_outcome = False
        self.exit_code: int | None = None
        self._runner = runner
        self._on_change = on_change
        self._output = OutputReader(folder.path, asked.limits.output_bytes)
        self._notice = exit_notice(runner.pid)
        if self._notice is not None:
            loop.watch(self._notice.fileno(), READ, lambda _: self.finish())
        # It may have ended before we could be told.
        loop.after(0, self.finish)

    def finish(self) -> None:
        if self.outcome is not None or self.holds_outcome:
            return
        if is_alive(self._runner):
            if self._notice is None:
                self._loop.after(RETRY_SECONDS, self.finish)
            return
        outcome = Outcome(
            reason=self.reason,
            at=time.time(),
            output_bytes=self._output.size,
            detail=GONE,
            killed=self.killed,
            escaped=self.escaped,
        )
        self._stop_watching()
        try:
            self.folder.write_outcome(outcome)
        except OSError:
            self._loop.after(RETRY_SECONDS, self.finish)
            return
        self.outcome = outcome
        self._on_change()

    def _stop_watching(self) -> None:
        if self._notice is not None:
            self._loop.ignore(self._notice.fileno())
            self._notice.close()
            self._notice = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    def status(self) -> Status:
        return Status(
            asked=self.asked,
            state="unwatched" if self.outcome is None else "ended",
            runner=self.runner,
            outcome=self.outcome,
            output_bytes=self._output.size,
            last_output_at=self._output.changed_at or self.asked.at,
            folder=str(self.folder.path),
        )
