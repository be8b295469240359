"""The supervisor's work: its commands, its clients' requests, and when it has nothing left to do."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from holdfast.commands.command import (
    CommandKey,
    CommandOutcome,
    CommandRecord,
    CommandStatus,
    KillReport,
    Limits,
    ProcessInfo,
    Reason,
    Runner,
)
from holdfast.commands.connection import SupervisorConnection
from holdfast.commands.errors import CommandNotStarted
from holdfast.commands.execution import CommandExecution, Inherited
from holdfast.commands.folder import (
    CommandFolder,
    folders,
    folders_of,
    identity_of,
    remove_session,
    remove_unfinished,
    session_folder,
)
from holdfast.commands.leftovers import family_of
from holdfast.commands.loop import READ, SupervisorLoop, Timer
from holdfast.commands.orphans import OrphanedCommand, lost_outcome
from holdfast.commands.output import OutputReader
from holdfast.commands.processes import Census, boot_id, boot_seconds, is_alive, is_running, shown_name
from holdfast.commands.protocol import (
    AdoptRequest,
    CancelRequest,
    ForgetRequest,
    ForgetSessionRequest,
    KillRequest,
    ListRequest,
    Request,
    Response,
    StartRequest,
    StatusRequest,
    WatchRequest,
)
from holdfast.commands.termination import Terminations
from holdfast.commands.used_keys import UsedKeys

CEILING_GRACE_SECONDS: Final = 5.0
SWEEP_SECONDS: Final = 3600.0
FULL_PAUSE_SECONDS: Final = 0.2
"""Pause before accepting again when no descriptor is left for new connections."""

OPEN_FILES: Final = "/proc/"
"""The directory in which the system shows the open files of processes."""

MEMORY_SECONDS: Final = 30 * 86_400.0
"""How long a used key can be told from an unused one after its output, or its command, was removed."""

Command = CommandExecution | OrphanedCommand


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True):
    idle_seconds: float = 30.0
    retention_seconds: float = 86_400.0
    """Seconds from a command's end to the removal of its output."""


class Waiter(msgspec.Struct):
    connection: SupervisorConnection
    request: int
    offset: int | None


class SupervisorService:
    """Serves one commands folder. `is_at_home` tells whether that folder still exists and is still the one that clients
    find."""

    def __init__(
        self,
        root: Path,
        loop: SupervisorLoop,
        inherited: Inherited,
        settings: SupervisorSettings,
        *,
        is_at_home: Callable[[], bool],
    ) -> None:
        self._root = root
        self._home = identity_of(root)
        self._is_at_home = is_at_home
        self._loop = loop
        self._inherited = inherited
        self._settings = settings
        self._used = UsedKeys(root)
        self._commands: dict[str, Command] = {}
        self._by_pid: dict[int, CommandExecution] = {}
        self._ceilings: dict[str, Timer] = {}
        self._waiters: dict[str, list[Waiter]] = {}
        self._killings = Terminations(loop)
        self._killed: dict[str, list[tuple[SupervisorConnection, int]]] = {}
        """Commands being killed, and the clients that wait for the report."""
        self._connections: set[SupervisorConnection] = set()
        self._idle: Timer | None = None
        self._closing = False

    # Life

    def recover(self) -> None:
        """Takes over from earlier supervisors: writes outcomes for commands that ended unseen, and watches those that
        run."""
        remove_unfinished(self._root)
        try:
            self._used.prepare()
        except OSError as error:
            print(f"used keys can't be marked: {error}", file=sys.stderr, flush=True)
        census = cache(Census)
        for folder in folders(self._root):
            try:
                self._recover(folder, census)
            except (msgspec.DecodeError, OSError) as error:
                print(f"{folder.path}: {error}", file=sys.stderr, flush=True)
        self._sweep()

    def listen(self, listener: socket.socket) -> None:
        self._loop.watch(listener.fileno(), READ, lambda _: self._accept(listener))
        self._settle()

    def close_when_done(self) -> None:
        """Handles SIGTERM: ends as soon as no command runs, even with clients connected. Ending earlier would lose exit
        codes and leave processes unwatched."""
        self._closing = True
        self._settle()

    def _settle(self) -> None:
        """Stops the loop after an idle period without commands and clients; at once if the folder is gone, since no
        client can find this supervisor any more."""
        is_free = not self._commands and not self._killed
        if is_free and (self._closing or not self._is_at_home()):
            self._loop.stop()
        elif not is_free or self._connections:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
        elif self._idle is None:
            self._idle = self._loop.after(self._settings.idle_seconds, self._loop.stop)

    def reap(self) -> None:
        """Reaps all children that ended: commands, and their orphans, which became children of this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if (command := self._by_pid.pop(pid, None)) is not None:
                command.exited(code if code >= 0 else 128 - code)

    # Clients

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors. Pending connections are accepted when some are free.
            self._loop.ignore(listener.fileno())
            self._loop.after(FULL_PAUSE_SECONDS, lambda: self.listen(listener))
            return
        self._connections.add(
            SupervisorConnection(self._loop, peer, on_request=self._on_request, on_close=self._on_disconnect)
        )
        self._settle()

    def _on_disconnect(self, connection: SupervisorConnection) -> None:
        self._connections.discard(connection)
        for name in list(self._waiters):
            self._keep_waiters(name, lambda waiter: waiter.connection is not connection)
        self._settle()

    def _on_request(self, connection: SupervisorConnection, request: Request) -> None:
        if isinstance(request.verb, StartRequest | AdoptRequest) and not self._is_at_home():
            # The client reconnects and finds the supervisor that serves the folder now.
            connection.close()
            return
        try:
            response = self._respond(connection, request)
        except OSError as error:
            response = Response(id=request.id, error=str(error))
        except Exception as error:
            # A bug of ours. The client must not wait for ever.
            traceback.print_exc()
            response = Response(id=request.id, error=f"the supervisor failed: {type(error).__name__}")
        if response is not None:
            connection.send(response)

    def _respond(self, connection: SupervisorConnection, request: Request) -> Response | None:
        """Returns the response, or None if it comes later or never."""
        match request.verb:
            case StartRequest():
                return self._start(request.id, request.verb)
            case AdoptRequest(key):
                return self._adopt(request.id, key)
            case StatusRequest(key):
                return Response(id=request.id, status=self._status(key))
            case WatchRequest(key, offset):
                return self._watch(connection, request.id, key, offset)
            case KillRequest(key, grace_seconds):
                return self._kill(connection, request.id, key, grace_seconds)
            case ForgetRequest(key):
                return self._forget(request.id, key)
            case ForgetSessionRequest(owner, session):
                return self._forget_session(request.id, owner, session)
            case ListRequest():
                return Response(id=request.id, statuses=tuple(one.status() for one in self._commands.values()))
            case CancelRequest(cancelled):
                for name in list(self._waiters):
                    self._keep_waiters(
                        name, lambda waiter: (waiter.connection, waiter.request) != (connection, cancelled)
                    )
                return None

    # Requests

    def _start(self, request: int, verb: StartRequest) -> Response:
        if (status := self._used_status(verb.key)) is not None:
            return Response(id=request, status=status)
        if verb.start_before is not None and boot_seconds() >= verb.start_before:
            error = "the request to start it came too late; another process may run it"
            return Response(id=request, error=error, is_late=True)
        held = _held(verb.spec.directory)
        if held is None:
            return self._start_in(verb.spec.directory, request, verb)
        try:
            return self._start_in(f"/proc/self/fd/{held}", request, verb)
        finally:
            os.close(held)

    def _start_in(self, directory: str, request: int, verb: StartRequest) -> Response:
        spec = verb.spec
        folder = CommandFolder.of(self._root, verb.key)
        record = CommandRecord(
            key=verb.key,
            command=spec.command,
            directory=spec.directory,
            limits=spec.limits,
            merged=spec.merged,
            at=time.time(),
            boot=boot_id(),
            wrapper=shown_name(spec.wrapper),
            token=os.urandom(20).hex(),
            home=self._home,
        )
        if not folder.create(record):
            return Response(id=request, status=self._status(verb.key))
        name = verb.key.name
        command = CommandExecution(self._loop, folder, record, on_change=lambda: self._changed(name))
        self._commands[name] = command
        try:
            command.start(msgspec.structs.replace(spec, directory=directory), self._inherited)
        except CommandNotStarted as error:
            command.not_started(str(error))
        else:
            assert command.runner is not None
            self._by_pid[command.runner.pid] = command
            self._set_ceiling(command)
        self._settle()
        return Response(id=request, status=command.status(), created=True)

    def _adopt(self, request: int, key: CommandKey) -> Response:
        if (status := self._used_status(key)) is not None:
            return Response(id=request, status=status)
        folder = CommandFolder.of(self._root, key)
        record = self._empty_record(key)
        # A crash in between leaves a key without a runner, which means the same.
        folder.create(record)
        folder.write_outcome(CommandOutcome(reason="not_started", at=record.at, detail="no attempt had started it"))
        return Response(id=request, status=self._status(key), created=True)

    def _empty_record(self, key: CommandKey) -> CommandRecord:
        """Returns the record of a key under which nothing will run."""
        return CommandRecord(
            key=key,
            command="",
            directory="",
            limits=Limits(),
            merged=False,
            at=time.time(),
            boot=boot_id(),
            home=self._home,
        )

    def _used_status(self, key: CommandKey) -> CommandStatus | None:
        """Returns the status of a used key, also after its command was removed; None if the key is free."""
        if (status := self._status(key)) is not None or key.name not in self._used:
            return status
        record = self._empty_record(key)
        outcome = CommandOutcome(reason="lost", at=record.at, detail="its records were removed with its session")
        return CommandStatus(record=record, state="ended", outcome=outcome, last_output_at=record.at)

    def _status(self, key: CommandKey) -> CommandStatus | None:
        if (command := self._commands.get(key.name)) is not None:
            return command.status()
        folder = CommandFolder.of(self._root, key)
        record = folder.record()
        if record is None:
            return None
        outcome = folder.outcome()
        if outcome is None:
            self._recover(folder, Census)
            if (command := self._commands.get(key.name)) is not None:
                return command.status()
            outcome = folder.outcome()
        output = OutputReader(folder.path, record.limits.output_bytes)
        return CommandStatus(
            record=record,
            state="ended",
            runner=folder.runner(),
            outcome=outcome,
            output_bytes=output.size,
            last_output_at=output.changed_at or record.at,
            folder=str(folder.path),
        )

    def _watch(
        self, connection: SupervisorConnection, request: int, key: CommandKey, offset: int | None
    ) -> Response | None:
        status = self._status(key)
        if status is None or status.outcome is not None or _has_more(status, offset):
            return Response(id=request, status=status)
        self._waiters.setdefault(key.name, []).append(Waiter(connection, request, offset))
        return None

    def _kill(
        self, connection: SupervisorConnection, request: int, key: CommandKey, grace_seconds: float
    ) -> Response | None:
        status = self._status(key)
        if status is None or status.runner is None or not self._is_local(status.record, status.runner):
            return Response(id=request, report=KillReport(status=status) if status else None)
        self._end(status, "killed", grace_seconds)
        self._killed[key.name].append((connection, request))
        return None

    def _forget(self, request: int, key: CommandKey) -> Response:
        """Removes a command; its key stays used. The output goes first, so that a full disk does not prevent making
        room. A crash before the removal leaves the rest, to be removed again; after it, only the mark of the key."""
        status = self._status(key)
        if status is None:
            return Response(id=request)
        if status.outcome is None or key.name in self._commands or key.name in self._killed:
            error = "it still runs, or processes that it left behind do; kill it first"
            return Response(id=request, status=status, error=error, keys=(key,))
        folder = CommandFolder.of(self._root, key)
        folder.remove_output()
        self._used.add((key.name,))
        folder.remove()
        return Response(id=request, status=status)

    def _forget_session(self, request: int, owner: str, session: str) -> Response:
        """Removes a session's commands at once if none runs, else one by one; their keys stay used. A crash in between
        leaves some: repeating is safe. The output goes first, and a missing outcome is not written, so that a full disk
        does not prevent making room."""
        path = session_folder(self._root, owner, session)
        session_folders = folders_of(path)
        busy = self._commands.keys() | self._killed.keys()
        running = [folder for folder in session_folders if folder.path.name in busy]
        ended = [folder for folder in session_folders if folder.path.name not in busy]
        for folder in ended:
            folder.remove_output()
        self._used.add(folder.path.name for folder in ended)
        if not running:
            remove_session(path)
            return Response(id=request)
        for folder in ended:
            folder.remove()
        keys = tuple(sorted(record.key for folder in running if (record := folder.record()) is not None))
        named = ", ".join(f"{key.tool_call} (attempt {key.attempt})" for key in keys)
        return Response(
            id=request,
            error=f"these still run, or processes that they left behind do; kill them first: {named}",
            keys=keys,
        )

    # Changes

    def _changed(self, name: str) -> None:
        """Called when a command has more output or an outcome."""
        command = self._commands.get(name)
        waiting = self._waiters.get(name, [])
        if command is not None and any(command.outcome is not None or waiter.offset is not None for waiter in waiting):
            status = command.status()
            due = [waiter for waiter in waiting if status.outcome is not None or _has_more(status, waiter.offset)]
            self._keep_waiters(name, lambda waiter: waiter not in due)
            for waiter in due:
                waiter.connection.send(Response(id=waiter.request, status=status))
        self._drop_if_over(name)

    def _drop_if_over(self, name: str) -> None:
        command = self._commands.get(name)
        if command is not None and command.is_over and name not in self._killed:
            del self._commands[name]
            if (ceiling := self._ceilings.pop(name, None)) is not None:
                ceiling.cancel()
            self._settle()

    def _keep_waiters(self, name: str, is_kept: Callable[[Waiter], bool]) -> None:
        kept = [waiter for waiter in self._waiters.get(name, []) if is_kept(waiter)]
        if kept:
            self._waiters[name] = kept
        else:
            self._waiters.pop(name, None)

    def _set_ceiling(self, command: Command) -> None:
        seconds = command.record.limits.seconds
        if seconds > 0:
            left = max(0.0, seconds - (time.time() - command.record.at))
            self._ceilings[command.record.key.name] = self._loop.after(left, lambda: self._met_ceiling(command))

    def _met_ceiling(self, command: Command) -> None:
        if not command.is_over:
            self._end(command.status(), "time", CEILING_GRACE_SECONDS)

    def _end(self, status: CommandStatus, reason: Reason, grace_seconds: float) -> None:
        """Kills all processes of a command and reports to every client that requested it. Only one kill runs at a time:
        a second request can only shorten the grace period."""
        name = status.key.name
        if name in self._killed:
            self._killings.hasten(status.record.mark, grace_seconds)
            return
        assert status.runner is not None
        self._killed[name] = []
        command = self._commands.get(name)
        if command is not None and command.outcome is None:
            command.holds_outcome = True
            # A command that has exited by itself, and whose outcome is only not written yet, was not killed.
            if command.exit_code is None:
                command.reason = reason
        self._killings.begin(
            status.runner,
            status.record.mark,
            grace_seconds=grace_seconds,
            knows_session=command is not None and command.knows_session,
            wrapper=status.record.wrapper,
            done=lambda killed, escaped: self._ended(status, killed, escaped),
        )

    def _ended(self, before: CommandStatus, killed: tuple[ProcessInfo, ...], escaped: tuple[ProcessInfo, ...]) -> None:
        self.reap()
        name = before.key.name
        if (command := self._commands.get(name)) is not None:
            command.was_killed(killed, escaped)
        # The folder of a command that had ended before may have been removed since.
        status = self._status(before.key) or before
        report = KillReport(status=status, killed=killed, escaped=escaped)
        for connection, request in self._killed.pop(name):
            connection.send(Response(id=request, report=report))
        self._drop_if_over(name)
        self._settle()

    def _recover(self, folder: CommandFolder, census: Callable[[], Census]) -> None:
        outcome = folder.outcome()
        if outcome is not None and not (outcome.left_behind or outcome.escaped):
            return
        record, runner = folder.record(), folder.runner()
        if record is None:
            return

        local_runner = runner if runner is not None and self._is_local(record, runner) else None
        if outcome is None and local_runner is not None and is_alive(local_runner):
            self._look_after(folder, record, local_runner, None)
            return
        if outcome is None:
            reason, detail = lost_outcome(record, runner, home=self._home)
            left = family_of(record, local_runner, census(), knows_session=False) if local_runner else ()
            size = OutputReader(folder.path, record.limits.output_bytes).size
            outcome = CommandOutcome(reason=reason, at=time.time(), output_bytes=size, detail=detail, left_behind=left)
            folder.write_outcome(outcome)
        if local_runner is not None and any(is_running(one) for one in (*outcome.left_behind, *outcome.escaped)):
            self._look_after(folder, record, local_runner, outcome)

    def _look_after(
        self, folder: CommandFolder, record: CommandRecord, runner: Runner, outcome: CommandOutcome | None
    ) -> None:
        name = record.key.name
        command = OrphanedCommand(
            self._loop, folder, record, runner, outcome=outcome, on_change=lambda: self._changed(name)
        )
        self._commands[name] = command
        self._set_ceiling(command)

    def _is_local(self, record: CommandRecord, runner: Runner) -> bool:
        """Whether the recorded pids mean processes of this boot and folder. If not, the machine was rebooted, or the
        folder is a copy of the one they were started in."""
        return runner.boot == boot_id() and record.home in ("", self._home)

    def _sweep(self) -> None:
        """Removes the output of commands that ended long ago, and all records of those that ended very long ago."""
        now = time.time()
        for folder in folders(self._root):
            try:
                outcome = folder.outcome()
                if outcome is None or folder.path.name in self._commands:
                    continue
                age = now - outcome.at
                if age > self._settings.retention_seconds + MEMORY_SECONDS:
                    folder.remove()
                elif age > self._settings.retention_seconds:
                    folder.remove_output()
            except (msgspec.DecodeError, OSError) as error:
                print(f"{folder.path}: {error}", file=sys.stderr, flush=True)
        try:
            self._used.remove_older_than(now - self._settings.retention_seconds - MEMORY_SECONDS)
        except OSError as error:
            print(f"the marks of used keys can't be removed: {error}", file=sys.stderr, flush=True)
        self._loop.after(SWEEP_SECONDS, self._sweep)
        self._settle()


def _has_more(status: CommandStatus, offset: int | None) -> bool:
    return offset is not None and status.output_bytes > offset


def _held(directory: str) -> int | None:
    """Opens the folder if its name is an open file of the requesting process (`/proc/PID/fd/N`); returns None for a
    plain path.

    Raises `OSError` if that process has died. Then nothing is started, and the key stays free: the process that takes
    over the session asks again under a name of its own.
    """
    if not directory.startswith(OPEN_FILES):
        return None
    return os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
