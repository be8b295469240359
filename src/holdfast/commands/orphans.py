"""Commands whose supervisor died: they may still run, but their output and exit code can no longer be recorded.

The next supervisor watches them until they end, and records them as lost. It watches their leftovers as well.
"""

import time
from collections.abc import Callable
from typing import Final

from holdfast.commands.command import CommandOutcome, CommandRecord, CommandStatus, ProcessInfo, Reason, Runner
from holdfast.commands.folder import CommandFolder, identity_of
from holdfast.commands.leftovers import NOT_ENDED, Leftovers, family_of
from holdfast.commands.loop import READ, SupervisorLoop
from holdfast.commands.output import OutputReader
from holdfast.commands.processes import Census, Notice, boot_id, exit_notice, is_alive

RETRY_SECONDS: Final = 0.5

GONE: Final = "its supervisor died; how it ended is unknown, and what it wrote after that is lost"
REBOOTED: Final = "the machine was restarted while it ran, or it ran on another machine"
COPIED: Final = "this folder is a copy of the one that it was started in; only the original knows how it ended"
NEVER_RAN: Final = "the supervisor died before it could start it"


def lost_outcome(record: CommandRecord, runner: Runner | None, *, home: str) -> tuple[Reason, str]:
    """Returns reason and detail for a command that has no outcome and does not run here."""
    if record.boot != boot_id():
        return "lost", REBOOTED
    if record.home not in ("", home):
        return "lost", COPIED
    if runner is None:
        return "not_started", NEVER_RAN
    return "lost", GONE


class OrphanedCommand:
    """A command of an earlier supervisor. With an outcome: a command that has ended and left processes running."""

    def __init__(
        self,
        loop: SupervisorLoop,
        folder: CommandFolder,
        record: CommandRecord,
        runner: Runner,
        *,
        outcome: CommandOutcome | None = None,
        on_change: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.folder = folder
        self.record = record
        self.runner: Runner | None = runner
        self.outcome = outcome
        self.knows_session = outcome is None
        """True if this supervisor has watched the session since before it ended, so that its number can't have been
        reused."""
        self.reason: Reason = "lost"
        self.killed: tuple[ProcessInfo, ...] = ()
        self.escaped: tuple[ProcessInfo, ...] = ()
        self.holds_outcome = False
        self.exit_code: int | None = None
        self._runner = runner
        self._on_change = on_change
        self._output = OutputReader(folder.path, record.limits.output_bytes)
        self._gave_up = False
        self._left = Leftovers(loop, look=self._family, on_over=on_change)
        self._identity = identity_of(folder.path)
        self._notice: Notice | None = None
        if outcome is not None:
            self._left.watch((*outcome.left_behind, *outcome.escaped))
            return
        self._notice = exit_notice(runner.pid)
        if self._notice is not None:
            loop.watch(self._notice.fileno(), READ, lambda _: self.finish())
        # It may have ended before the watch was in place.
        loop.after(0, self.finish)

    def was_killed(self, killed: tuple[ProcessInfo, ...], escaped: tuple[ProcessInfo, ...]) -> None:
        if self.outcome is not None:
            self._left.watch(escaped)
            return
        self.killed, self.escaped, self.holds_outcome = killed, escaped, False
        self._gave_up = self._runner.pid in {one.pid for one in escaped}
        self.finish()

    def finish(self) -> None:
        if self.outcome is not None or self.holds_outcome:
            return
        if not self._gave_up and is_alive(self._runner):
            if self._notice is None:
                self._loop.after(RETRY_SECONDS, self.finish)
            return
        outcome = CommandOutcome(
            reason=self.reason,
            at=time.time(),
            output_bytes=self._output.size,
            detail=NOT_ENDED if self._gave_up else GONE,
            left_behind=self._family() if self.reason == "lost" else (),
            killed=self.killed,
            escaped=self.escaped,
        )
        self._stop_watching()
        try:
            self.folder.write_outcome(outcome)
        except OSError:
            if self.folder.is_still(self._identity):
                self._loop.after(RETRY_SECONDS, self.finish)
                return
        self.outcome = outcome
        self._left.watch((*outcome.left_behind, *outcome.escaped))
        self._on_change()

    def _family(self) -> tuple[ProcessInfo, ...]:
        return family_of(self.record, self._runner, Census(), knows_session=self.knows_session)

    def _stop_watching(self) -> None:
        if self._notice is not None:
            self._loop.ignore(self._notice.fileno())
            self._notice.close()
            self._notice = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None and self._left.is_over

    def status(self) -> CommandStatus:
        return CommandStatus(
            record=self.record,
            state="unwatched" if self.outcome is None else "ended",
            runner=self.runner,
            outcome=self.outcome,
            output_bytes=self._output.size,
            last_output_at=self._output.changed_at or self.record.at,
            folder=str(self.folder.path),
        )
