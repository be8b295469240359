"""The command of a tool call: started once, whichever process attempts the call and however often, and waited for in
the foreground.

It runs under a supervisor that outlives the runtime, and every attempt at a call has the same key: the first starts the
command, and a later one, after a crash, goes on waiting for it or learns how it ended.
"""

import asyncio
import codecs
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.commands.command import CommandOutcome, CommandStatus, Spec, Stream
from holdfast.commands.errors import (
    CommandNotStarted,
    CommandRefused,
    CommandsError,
    IsolationUnavailable,
    StartTooLate,
    SupervisorUnavailable,
)
from holdfast.commands.processes import boot_seconds
from holdfast.commands.redaction import RedactedStream
from holdfast.store import crash_points
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.tasks.desk import command_key
from holdfast.tasks.endings import ending_of
from holdfast.tasks.shell import Shell
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import ToolContext, ToolResult
from holdfast.tools.truncation import MARGIN_BYTES, Room, cut, cut_start, decoded
from holdfast.tools.working_directory import DirectoryRefused, WorkingDirectory, place_to_start, working_directory

MIN_WAIT_SECONDS: Final = 1.0
DEFAULT_WAIT_SECONDS: Final = 30.0
MAX_WAIT_SECONDS: Final = 300.0

MAX_COMMAND_CHARACTERS: Final = 30_000
"""The system takes 128 KiB for one argument, whatever its characters."""

MAX_LABEL_CHARACTERS: Final = 200
"""A description is shown in lists, and in the preamble of every model call while the command runs."""

GRACE_SECONDS = 0.5
"""Time between SIGTERM and SIGKILL. A stop waits a second for both."""

REPORT_SECONDS: Final = 0.2
REPORT_BYTES: Final = 4_000
"""How often people see new output of a command, and how much of it."""

NOT_HERE: Final = "commands can't be run here"

NOT_KEPT: Final = "What it wrote is not kept any more."

UNKNOWN_OUTCOME: Final = "How this command ended, and whether it took effect, is unknown: check before doing it again."

ELSEWHERE: Final = (
    "This command was started on another machine, which can't be reached from here, and will be ended there. Whether "
    "it took effect is unknown: check before doing it again."
)


LATE_SECONDS: Final = 0.1
"""Pause before a request that came too late is repeated."""


class ShellCall(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run, and how long to wait for it."""

    command: str
    directory: str
    merged: bool = False
    """Merges stdout and stderr, in exact order."""
    wait_seconds: float | None = None
    """None: the command runs in the background from the start."""


def checked_command(command: str) -> str:
    """Returns the command without surrounding white space. Raises `ToolFailure` if it is not a valid command."""
    command = command.strip()
    if not command:
        raise ToolFailure("command is required")
    if "\0" in command:
        raise ToolFailure("A command can't contain a NUL character")
    if len(command) > MAX_COMMAND_CHARACTERS:
        raise ToolFailure(f"A command has at most {MAX_COMMAND_CHARACTERS:,} characters; put a longer one into a file")
    return command


def label(text: str) -> str:
    """Returns a description as one short line."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_LABEL_CHARACTERS else words[: MAX_LABEL_CHARACTERS - 1] + "…"


def within(seconds: float | None, default: float, *, most: float = MAX_WAIT_SECONDS) -> float:
    return max(MIN_WAIT_SECONDS, min(default if seconds is None else seconds, most))


def shell_of(context: ToolContext) -> Shell:
    if context.shell is None:
        raise ToolFailure(NOT_HERE)
    return context.shell


class CallCommand:
    """The command of one call. Raises `ToolFailure` where commands can't be run."""

    def __init__(self, context: ToolContext) -> None:
        self.shell = shell_of(context)
        if context.command is None:
            raise ToolFailure(NOT_HERE)
        self.row = context.command
        self.commands = self.shell.commands
        self.key = command_key(context.command)
        self._context = context
        self._is_out_of_sight = False

    async def carry_out(self, wanted: ShellCall) -> CommandStatus:
        """Starts the command, unless an earlier attempt did, and waits until it ends, the time is over, or a request
        moves it to the background. A stop kills it. A process that only lets go of the session leaves it to the next
        holder, which may be watching. A slow supervisor is no reason to end a running command: it goes on in the
        background.

        Raises `CommandNotStarted`, and `ToolFailure` if its fate is unknown: then it is killed, if it runs.
        """
        try:
            status = await self._begun(wanted)
            if status.outcome is None and wanted.wait_seconds is not None:
                waited = max(0.0, time.time() - status.record.at)
                try:
                    status = await self._in_front(max(0.0, wanted.wait_seconds - waited))
                except SupervisorUnavailable:
                    self._is_out_of_sight = True
            return status
        except CommandsError as error:
            raise ToolFailure(f"The command can't be run: {error}") from error
        except asyncio.CancelledError:
            if self._context.is_interrupted():
                await asyncio.shield(self._end())
            raise

    # Start

    async def _begun(self, wanted: ShellCall) -> CommandStatus:
        if self._context.attempt > 1 and (status := await self._started_before()) is not None:
            return status
        await self._check_room()
        try:
            root = working_directory(self._context.working_directory or wanted.directory)
            with place_to_start(wanted.directory, root, by_root=self.shell.isolation.binds_directory) as place:
                return await self._start(self._spec(wanted, root, place))
        except DirectoryRefused as error:
            raise CommandNotStarted(str(error), error.code) from error
        except (CommandRefused, IsolationUnavailable) as error:
            raise CommandNotStarted(f"The command can't be started: {error}") from error
        except SupervisorUnavailable:
            # The supervisor may have received the request. If not, this uses the key up, so that nothing can start
            # under it later.
            return await self.commands.adopt(self.key)

    async def _start(self, spec: Spec) -> CommandStatus:
        """Has the supervisor start the command while the lease lasts. A crash before this leaves an attempt whose key
        is free; after it, the key is used. A process that is frozen in between can't start it once another process may.

        A request that comes too late is repeated: the supervisor was slow and the lease was renewed meanwhile, or the
        lease is lost and this call is cancelled."""
        while True:
            start_before = boot_seconds() + self._context.lease_seconds_left()
            crash_points.reach("start_command:command:before")
            try:
                answer = await self.commands.start(self.key, spec, start_before=start_before)
            except StartTooLate:
                await asyncio.sleep(LATE_SECONDS)
                continue
            crash_points.reach("start_command:command:after")
            return answer.status

    async def _started_before(self) -> CommandStatus | None:
        """Returns the status of the command that an earlier attempt started. Only the machine of that attempt can
        know."""
        first = await self.shell.desk.find(self.row.key, self.row.task_id)
        if first.host != self.shell.desk.host:
            raise ToolFailure(ELSEWHERE)
        return await self.commands.status(self.key)

    def _spec(self, wanted: ShellCall, root: WorkingDirectory, place: str) -> Spec:
        is_limited = root.identity is not None and root.identity.limited
        hidden = self.shell.folders_of_owners if is_limited else ()
        return Spec(
            command=wanted.command,
            directory=place,
            wrapper=self.shell.isolation.program,
            environment=self.shell.environment,
            limits=self.shell.limits,
            merged=wanted.merged,
            inside=self.shell.isolation.inside(wanted.directory, root=str(root.real()), hidden=hidden),
            filter=self.shell.isolation.filter,
            shell=_shell(),
        )

    async def _check_room(self) -> None:
        """Refuses the command if too many run. Calls of one step arrive at once: the earlier ones are let through."""
        most = self._context.max_running_tasks
        running = await self.shell.desk.running(self.row.key)
        if len([row for row in running if _comes_before(row, self.row)]) >= most:
            raise CommandNotStarted(
                f"The command was not started: {most} commands of this session are running, and no more can run at "
                "once. Wait until one of them ends, or kill one that is not needed."
            )

    # Waiting

    async def _in_front(self, seconds: float) -> CommandStatus:
        ending = asyncio.create_task(self.commands.wait(self.key))
        moving = asyncio.create_task(self._context.to_background.wait())
        showing = asyncio.create_task(self._show())
        try:
            await asyncio.wait([ending, moving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            # Both may have happened at once: then it has ended, and nothing is left to move to the background.
            return await ending if ending.done() else await self.commands.wait(self.key, 0)
        finally:
            for task in (ending, moving, showing):
                task.cancel()
            await asyncio.gather(ending, moving, showing, return_exceptions=True)

    async def _show(self) -> None:
        """Shows people the latest output from time to time. The result has the rest."""
        output = LiveOutput(self)
        with contextlib.suppress(CommandsError):
            while True:
                await self.commands.wait_for_output(self.key, output.shown_bytes)
                await asyncio.sleep(REPORT_SECONDS)
                if text := await output.latest():
                    self._context.progress(text)

    async def _end(self) -> None:
        """Kills the command because its turn is stopped, and records for the model how it ended and what it wrote."""
        with contextlib.suppress(CommandsError):  # The command had not started.
            await self.commands.kill(self.key, GRACE_SECONDS)
            status = await self.commands.status(self.key)
            if status is not None and status.outcome is not None:
                written = await self.tail()
                said = f"It had written:\n{written}" if written else "It had written nothing."
                self._context.last_words = f"{_last_state(status.outcome)} {said}"

    # Result

    async def written(self, stream: Stream, room: Room) -> str:
        """Returns the output for display, shortened if it is long."""
        size = await self.commands.size(self.key, stream)
        if size <= room.whole_bytes:
            head = tail = await self._text(stream, 0, size)
            if room.holds(head):
                return head
        else:
            end = min(size, room.tail_bytes + MARGIN_BYTES)
            head = await self._text(stream, 0, room.head_bytes + MARGIN_BYTES)
            tail = await self._text(stream, size - end, end)
        return cut(head, tail, size, room, self.row.output_file)

    async def _text(self, stream: Stream, offset: int, length: int) -> str:
        data = (await self.commands.read(self.key, offset, length, stream)).data
        return decoded(cut_start(data) if offset else data, self.clean)

    @property
    def clean(self) -> Callable[[str], str]:
        """Removes known secrets from a text. It must run before a text is encoded as JSON, which may change them."""
        return self.shell.desk.redaction.text

    async def tail(self) -> str:
        return await self.shell.desk.tail(self.row)

    def why_it_goes_on(self, seconds: float) -> str:
        """Returns why the call no longer waits: the first half of a sentence."""
        if self._context.to_background.is_set():
            return f"A person moved it to the background before its foreground limit of {seconds:g} seconds had passed"
        if self._is_out_of_sight:
            return "The supervisor of commands does not answer at the moment, so it was moved to the background"
        return f"It did not finish within the foreground limit of {seconds:g} seconds and was moved to the background"

    def not_started(self, error: CommandNotStarted) -> ToolResult:
        why = str(error)
        ending = TaskEnding(status="failed", detail=why, ended_at=self.row.started_at)
        return ToolResult(content=why, success=False, ending=ending, code=error.code)


class LiveOutput:
    """The output that people see while a command runs: the latest, and no part of a secret."""

    def __init__(self, command: CallCommand) -> None:
        self.shown_bytes = 0
        self._command = command
        self._begin(is_cut=False)

    def _begin(self, *, is_cut: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = RedactedStream(self._command.shell.desk.redaction, is_cut=is_cut)

    async def latest(self) -> str:
        """Returns the output since the last call; if there is much, only its end."""
        commands, key = self._command.commands, self._command.key
        size = await commands.size(key)
        start = self.shown_bytes
        if size - start > REPORT_BYTES:
            start = max(start, size - REPORT_BYTES - self._command.shell.desk.redaction.margin_bytes)
        chunk = await commands.read(key, start, size - start)
        data = chunk.data
        if chunk.offset != self.shown_bytes:
            data = cut_start(data)
            self._begin(is_cut=True)
        self.shown_bytes = max(self.shown_bytes, chunk.end)
        text = self._stream.next(self._decoder.decode(data))
        return text.encode()[-REPORT_BYTES:].decode("utf-8", "ignore")


def _comes_before(row: TaskRow, ours: TaskRow) -> bool:
    """Whether a running command counts before ours: all that run do, whatever the clock said, except calls of the same
    step, which are ordered by start and id."""
    if row.task_id == ours.task_id:
        return False
    if _step(row) != _step(ours):
        return True
    return (row.started_at, row.task_id) < (ours.started_at, ours.task_id)


def _step(row: TaskRow) -> str:
    """Returns the message that made the call: a call's key is the message followed by the call's id."""
    return row.call_key.removesuffix(row.tool_call_id)


def is_gone(status: CommandStatus) -> bool:
    """Whether the retention time is over and the output was removed."""
    return status.outcome is not None and status.output_bytes < status.outcome.output_bytes


def ending_in(status: CommandStatus) -> TaskEnding:
    assert status.outcome is not None
    return ending_of(status.outcome, status.record.limits.seconds)


def what_is_wrong(outcome: CommandOutcome, ending: TaskEnding) -> str:
    """Returns why an end is not an ordinary one; empty for a command that exited by itself, whatever its exit code."""
    match outcome.reason:
        case "exited":
            return ""
        case "killed":
            return f"It was killed while it ran. {ending.detail}".strip()
        case "time":
            return ending.detail
        case "lost":
            return UNKNOWN_OUTCOME
        case "not_started":
            return f"The command can't be started: {outcome.detail}"


def _last_state(outcome: CommandOutcome) -> str:
    """Describes the state of a command when its turn was stopped."""
    match outcome.reason:
        case "exited":
            return f"The command had exited with code {outcome.exit_code}."
        case "killed":
            return "The command was killed."
        case "time":
            return "The command had been killed because its time was over."
        case "lost":
            return UNKNOWN_OUTCOME
        case "not_started":
            return "The command had not started."


def _shell() -> str:
    """Returns the path of bash if it is not in /bin; empty leaves the choice to the supervisor."""
    return "" if os.access("/bin/bash", os.X_OK) else shutil.which("bash") or ""
