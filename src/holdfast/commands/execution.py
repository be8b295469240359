"""One command run by this supervisor: its start behind a gate, its output, its end.

A command is forked, waits at the gate, and is let through only once its process is recorded on disk. No command can run
without a record, so a missing record proves that nothing ran.
"""

import contextlib
import fcntl
import os
import resource
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Final, NoReturn

from holdfast.commands.command import (
    MARK,
    CommandOutcome,
    CommandRecord,
    CommandStatus,
    Limits,
    ProcessInfo,
    Reason,
    Runner,
    Spec,
)
from holdfast.commands.errors import CommandNotStarted
from holdfast.commands.folder import CommandFolder, identity_of
from holdfast.commands.leftovers import NOT_ENDED, Leftovers, family_of
from holdfast.commands.loop import READ, SupervisorLoop, Timer
from holdfast.commands.output import STDERR, STDOUT, OutputReader, OutputWriter
from holdfast.commands.processes import Census, boot_id, process_entry, set_mark_number
from holdfast.commands.sandbox_entry import BOUND, SandboxEntry

CHUNK_BYTES: Final = 65_536

LINGER_SECONDS: Final = 0.1
"""Time after the shell's end for processes that it did not wait for but that are about to end, such as `>(tee
file)`."""

RETRY_SECONDS: Final = 0.5
"""Retry interval while the disk is full. The command waits meanwhile, because its pipe is not read."""

FLOOD_BYTES: Final = 4 * CHUNK_BYTES
FLOOD_PAUSE_SECONDS: Final = 0.004
"""Over the output limit, most of what is read is dropped again. Reading at full speed would use a core for as long as
the command writes, so the pipe is read in larger pieces with a pause after each."""


class Inherited:
    """Settings that commands inherit from the process that started the supervisor, which has changed its own."""

    def __init__(self, *, umask: int, files: tuple[int, int]) -> None:
        self.umask = umask
        self.files = files
        """The limit on open files before the supervisor raised its own."""


class CommandExecution:
    """A command that this supervisor started. Calls `on_change` when there is more output, an outcome, or nothing left
    running."""

    knows_session = True

    def __init__(
        self, loop: SupervisorLoop, folder: CommandFolder, record: CommandRecord, *, on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self.folder = folder
        self.record = record
        self.runner: Runner | None = None
        self.outcome: CommandOutcome | None = None
        self.reason: Reason = "exited"
        """The reason to record when it ends."""
        self.killed: tuple[ProcessInfo, ...] = ()
        self.escaped: tuple[ProcessInfo, ...] = ()
        self.exit_code: int | None = None
        self.holds_outcome = False
        """True while a kill is in progress: its findings belong in the outcome."""
        self._gave_up = False
        """True if the command could not be killed and is no longer waited for: it then counts as one of its own
        leftovers."""
        self._left = Leftovers(loop, look=self._family, on_over=self._let_go)
        self._identity = identity_of(folder.path)
        self._on_change = on_change
        self._output: OutputWriter | None = None
        self._pipes: dict[int, int] = {}
        self._unwritten: dict[int, bytes] = {}
        self._last_output_at = record.at
        self._detail = ""
        self._trying: Timer | None = None

    # Start

    def start(self, spec: Spec, inherited: Inherited) -> None:
        """Starts the command. Raises `CommandNotStarted`. After any exception the key is used up, and an outcome will
        say so."""
        open_here: list[int] = []
        try:
            self._output = OutputWriter(self.folder.path, self.record.limits.output_bytes)
            self._start(spec, inherited, open_here)
        except (OSError, ValueError) as error:
            raise CommandNotStarted(str(error)) from error
        finally:
            for descriptor in open_here:
                os.close(descriptor)

    def _start(self, spec: Spec, inherited: Inherited, open_here: list[int]) -> None:
        directory = os.open(spec.directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
        open_here.append(directory)
        gate, opener = _pipe(open_here)
        failure, failing = _pipe(open_here)
        stdin = _nothing(open_here)
        entry = SandboxEntry(spec.filter) if spec.filter else None
        stdout = self._output_pipe(STDOUT, open_here)
        stderr = stdout if spec.merged else self._output_pipe(STDERR, open_here)
        pid = os.fork()
        if not pid:
            os.close(opener)
            self._loop.forget_signals()
            streams = (stdin, stdout, stderr)
            become(
                spec,
                self.record.mark,
                inherited,
                entry,
                gate=gate,
                streams=streams,
                at=directory,
                failing=failing,
            )
        self._let_through(pid, opener)
        open_here.remove(failing)
        os.close(failing)
        if message := os.read(failure, 4096):
            raise ValueError(message.decode("utf-8", "replace"))

    def _output_pipe(self, stream: int, open_here: list[int]) -> int:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._pipes[reading] = stream
        self._listen(reading)
        open_here.append(writing)
        return writing

    def _let_through(self, pid: int, opener: int) -> None:
        """Records the process and opens the gate. If the supervisor dies before the record is written, the gate closes
        and the child exits. If it dies between record and opening, the child exits as well and counts as lost, which is
        the safe side. Raises `OSError` without having opened the gate."""
        entry = process_entry(pid)
        runner = Runner(pid=pid, started=entry.started if entry else "", boot=boot_id())
        self.folder.write_runner(runner)
        self.runner = runner
        try:
            os.write(opener, b"\n")
        except BrokenPipeError:
            pass  # The child has exited already, and reported why.

    # Output

    def _write(self, pipe: int, data: bytes) -> bool:
        """Writes output to the file. Returns False if not all of it was written; the pipe is then not read until it
        is."""
        assert self._output is not None
        try:
            written = self._output.append(data, self._pipes[pipe])
        except OSError:
            # Without its folder the output can never be read. The command must not wait for that.
            written = 0 if self.folder.is_still(self._identity) else len(data)
        self._last_output_at = time.time()
        if written < len(data):
            self._loop.ignore(pipe)
            if not self._unwritten:
                self._loop.after(RETRY_SECONDS, self._retry)
            self._unwritten[pipe] = data[written:]
        self._on_change()
        return written == len(data)

    def _retry(self) -> None:
        waiting, self._unwritten = self._unwritten, {}
        for pipe, data in waiting.items():
            if self._write(pipe, data):
                self._listen(pipe)
        if self._is_due:
            self._drain()
            self.finish()

    def _listen(self, pipe: int) -> None:
        self._loop.watch(pipe, READ, lambda _: self._readable(pipe))

    def _drain(self) -> None:
        """Reads what is in the pipes when the shell has ended: only the bytes present now, and one more read for the
        end, because leftover processes may write for ever."""
        for pipe in list(self._pipes):
            left = _waiting_bytes(pipe)
            while left >= 0 and pipe in self._pipes and pipe not in self._unwritten:
                left -= self._read(pipe) or 1

    def _readable(self, pipe: int) -> None:
        self._read(pipe)
        if not self._pipes:
            self._closed()
        elif self._is_flood and pipe in self._pipes:
            _widen(pipe)
            self._loop.ignore(pipe)
            self._loop.after(FLOOD_PAUSE_SECONDS, lambda: self._rested(pipe))

    def _rested(self, pipe: int) -> None:
        # If the pipe was closed meanwhile, its number may be reused; while the disk is full, the pipe stays paused.
        if pipe in self._pipes and pipe not in self._unwritten:
            self._listen(pipe)

    @property
    def _is_flood(self) -> bool:
        return self._output is not None and self._output.is_over_ceiling

    def _read(self, pipe: int) -> int:
        try:
            data = os.read(pipe, FLOOD_BYTES if self._is_flood else CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._write(pipe, data)
        else:
            self._close(pipe)
        return len(data)

    def _close(self, pipe: int) -> None:
        self._loop.ignore(pipe)
        os.close(pipe)
        del self._pipes[pipe]

    # End

    def exited(self, exit_code: int) -> None:
        """Handles the end of the shell. Other processes of the command may run on and write."""
        self.exit_code = exit_code
        self._drain()
        if self._pipes and self.outcome is None:
            self._loop.after(LINGER_SECONDS, self.finish)
        else:
            self.finish()

    def not_started(self, why: str) -> None:
        self.reason = "not_started"
        self._detail = why
        for pipe in list(self._pipes):
            self._close(pipe)
        self.finish()

    def _closed(self) -> None:
        """Handles the end of all output: no process has a pipe open any more."""
        if self._is_due:
            self.finish()

    @property
    def _is_due(self) -> bool:
        return self.exit_code is not None or self._gave_up

    def was_killed(self, killed: tuple[ProcessInfo, ...], escaped: tuple[ProcessInfo, ...]) -> None:
        """Records the result of a kill. If the shell itself has escaped (for example because it changed its user), its
        end is not waited for."""
        self._drain()
        if self.outcome is not None:
            self._left.watch(escaped)
        else:
            self.killed, self.escaped, self.holds_outcome = killed, escaped, False
            self._gave_up = self.runner is not None and self.runner.pid in {one.pid for one in escaped}
        if self._is_due:
            self.finish()

    def finish(self) -> None:
        """Writes the outcome once everything about it is known. No client gets it before it is on disk, unless the
        folder was removed: then only this supervisor and the waiting clients know it."""
        if self.outcome is not None:
            self._let_go()
            return
        if self.holds_outcome or self._unwritten:
            return  # A kill is in progress, or the disk is full. Both call this again when they are over.
        outcome = self._as_known()
        try:
            if self._output is not None:
                self._output.sync()
            self.folder.write_outcome(outcome)
        except OSError:
            if self.folder.is_still(self._identity):
                if self._trying is None or not self._trying.is_waiting:
                    self._trying = self._loop.after(RETRY_SECONDS, self.finish)
                return
        self.outcome = outcome
        self._left.watch((*outcome.left_behind, *outcome.escaped))
        self._let_go()

    def _let_go(self) -> None:
        if not self._pipes:
            self.release()
        self._on_change()

    def _as_known(self) -> CommandOutcome:
        return CommandOutcome(
            reason=self.reason,
            exit_code=self.exit_code if self.reason != "not_started" else None,
            at=time.time(),
            output_bytes=self._output.size if self._output else 0,
            detail=NOT_ENDED if self._gave_up and self.exit_code is None else self._detail,
            left_behind=self._left_behind() if self.reason == "exited" else (),
            killed=self.killed,
            escaped=self.escaped,
        )

    def _left_behind(self) -> tuple[ProcessInfo, ...]:
        """Returns leftover processes. Takes a census only if there is a sign of any: an open pipe or a member of the
        group."""
        if self.runner is None or not (self._pipes or _has_members(self.runner.pid)):
            return ()
        return self._family()

    def _family(self) -> tuple[ProcessInfo, ...]:
        assert self.runner is not None
        return family_of(self.record, self.runner, Census(), knows_session=True)

    def release(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None

    @property
    def is_over(self) -> bool:
        """Whether the command has ended, its output is closed, and none of its known processes runs."""
        return self.outcome is not None and not self._pipes and self._left.is_over

    def status(self) -> CommandStatus:
        ceiling = self.record.limits.output_bytes
        return CommandStatus(
            record=self.record,
            state="running" if self.outcome is None else "ended",
            runner=self.runner,
            outcome=self.outcome,
            output_bytes=self._output.size if self._output else OutputReader(self.folder.path, ceiling).size,
            last_output_at=self._last_output_at,
            folder=str(self.folder.path),
        )


def become(
    spec: Spec,
    mark: str,
    inherited: Inherited,
    entry: SandboxEntry | None,
    *,
    gate: int,
    streams: tuple[int, int, int],
    at: int,
    failing: int,
) -> NoReturn:
    """Runs in the child: waits at the gate, then becomes the command. Never returns into the supervisor's code."""
    try:
        # Away from the number that the entry gives to the folder.
        failing = fcntl.fcntl(failing, fcntl.F_DUPFD_CLOEXEC, BOUND + 1)
        os.setsid()
        os.fchdir(at)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.umask(inherited.umask)
        program = command_line(spec)
        environment = spec.environment | {MARK: mark}
        if not os.read(gate, 1):
            os._exit(0)
        set_mark_number(mark)
        limit(spec.limits, inherited.files)
        if entry is not None:
            entry.enter(at)
        os.execvpe(program[0], program, environment)
    except BaseException as error:
        os.write(failing, f"can't run it: {error}".encode("utf-8", "replace")[:4000])
    finally:
        os._exit(127)


def command_line(spec: Spec) -> list[str]:
    shell = spec.shell or ("/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh")
    return [*spec.inside, shell, "-c", spec.command]


def limit(limits: Limits, files: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
    ):
        hard = resource.getrlimit(kind)[1]
        if most > 0:
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (bound, bound))


def _pipe(open_here: list[int]) -> tuple[int, int]:
    ends = os.pipe()
    open_here.extend(ends)
    return ends


def _nothing(open_here: list[int]) -> int:
    open_here.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return open_here[-1]


def _widen(pipe: int) -> None:
    """Enlarges the pipe, so that more arrives during each pause. Linux only, and not permitted to every user."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, FLOOD_BYTES)


def _waiting_bytes(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
