"""The runtime's interface to commands: start, adopt, query, wait, read, follow, kill. It keeps no state that matters.

Every call may be repeated after any crash: the truth is on disk, and any process that finds no supervisor starts one.
Output is read from disk; the supervisor only signals when there is more.
"""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from holdfast.commands.address import SocketPathUnusable
from holdfast.commands.command import CommandKey, CommandStatus, KillReport, Spec, Stream
from holdfast.commands.environment import allowed, for_supervisor
from holdfast.commands.errors import CommandRefused, NoSuchCommand, StartTooLate, SupervisorUnavailable
from holdfast.commands.folder import CommandFolder, session_folder
from holdfast.commands.folder_id import folder_id_of
from holdfast.commands.output import OutputChunk, OutputReader, Run
from holdfast.commands.protocol import (
    AdoptRequest,
    ForgetRequest,
    ForgetSessionRequest,
    KillRequest,
    ListRequest,
    Response,
    StartRequest,
    StatusRequest,
    Verb,
    WatchRequest,
)
from holdfast.commands.service import SupervisorSettings
from holdfast.commands.supervisor_client import SupervisorClient, SupervisorDisconnected

TRIES: Final = 8
"""A supervisor may exit, or be killed, between any two messages. One death may take two tries: the system closes its
connections first, and then the socket on which new ones still arrive."""

ANSWER_SECONDS = 30.0
"""Timeout for requests that are answered at once. A supervisor that is stopped, or hangs on a disk, may still carry the
request out later: adopt the key to find out."""

FOLLOW_BYTES: Final = 65_536


class Started(msgspec.Struct, frozen=True):
    """The key was free and is now used up: the command runs, or its status says why it could not be started."""

    status: CommandStatus


class AlreadyThere(msgspec.Struct, frozen=True):
    """The key was already taken. Nothing was started; `status` is that of the command which has the key."""

    status: CommandStatus


class Commands:
    """All commands of one data directory. An async context manager; leaving it ends no command."""

    def __init__(
        self, folder: Path, *, settings: SupervisorSettings | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._root = Path(os.path.abspath(folder))
        self._settings = settings or SupervisorSettings()
        self._environment = os.environ if environment is None else environment
        self._client: SupervisorClient | None = None
        self._connecting = asyncio.Lock()
        self._launching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._launching is not None:
            await asyncio.gather(self._launching, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def folder_id(self) -> str:
        """Returns the random id of this commands folder, the same for every process that uses the folder. The id is on
        disk when this returns."""
        return await asyncio.to_thread(folder_id_of, self._root)

    def session_folder(self, owner: str, session: str) -> Path:
        """The folder that holds the output of all commands of a session. It need not exist."""
        return session_folder(self._root, owner, session)

    async def start(self, key: CommandKey, spec: Spec, *, start_before: float = math.inf) -> Started | AlreadyThere:
        """Runs a command under an unused key. When this returns, the key is on disk. If the supervisor dies during the
        request, the key may be ours and yet be reported as taken: adopt it, as after a crash of this process. A
        supervisor that handles the request at `start_before` (see `boot_seconds`) or later refuses it with
        `StartTooLate`."""
        complete = msgspec.structs.replace(spec, environment=allowed(self._environment) | spec.environment)
        request = StartRequest(key, complete, None if start_before == math.inf else start_before)
        response = await self._request(request)
        status = _known(key, response.status)
        return Started(status) if response.created else AlreadyThere(status)

    async def adopt(self, key: CommandKey) -> CommandStatus:
        """Returns the status of a command that may have been started. An unused key is used up by this, so that nothing
        can start under it: its reason is `not_started`, and the next attempt may start the command."""
        return _known(key, (await self._request(AdoptRequest(key))).status)

    async def status(self, key: CommandKey) -> CommandStatus | None:
        return (await self._request(StatusRequest(key))).status

    async def wait(self, key: CommandKey, timeout: float | None = None) -> CommandStatus:
        """Returns the status once the command has ended, or at the timeout; the command then runs on."""
        try:
            async with asyncio.timeout(timeout):
                return _known(key, (await self._request(WatchRequest(key))).status)
        except TimeoutError:
            return _known(key, await self.status(key))

    async def wait_for_output(self, key: CommandKey, offset: int, timeout: float | None = None) -> CommandStatus:
        """Returns the status once there is output beyond `offset`, the command has ended, or at the timeout."""
        try:
            async with asyncio.timeout(timeout):
                return _known(key, (await self._request(WatchRequest(key, offset))).status)
        except TimeoutError:
            return _known(key, await self.status(key))

    async def read(self, key: CommandKey, offset: int, length: int, stream: Stream = "both") -> OutputChunk:
        """Returns at most `length` bytes from `offset` on, also while the command runs. If `chunk.offset` is larger
        than `offset`, the bytes between are gone. For a single stream, offsets count the bytes of that stream."""
        return await asyncio.to_thread(lambda: self._reader(key).read_stream(stream, offset, length))

    async def size(self, key: CommandKey, stream: Stream = "both") -> int:
        return await asyncio.to_thread(lambda: self._reader(key).stream_size(stream))

    async def runs(self, key: CommandKey) -> list[Run]:
        """Returns which bytes came from which stream."""
        return await asyncio.to_thread(lambda: self._reader(key).runs())

    async def follow(self, key: CommandKey, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """Yields all output from `offset` on as it comes, until the command has ended and everything was read."""
        reader = await asyncio.to_thread(self._reader, key)
        while True:
            status = _known(key, (await self._request(WatchRequest(key, offset))).status)
            end = status.outcome.output_bytes if status.outcome else status.output_bytes
            while offset < end:
                chunk = await asyncio.to_thread(reader.read, offset, min(FOLLOW_BYTES, end - offset))
                if not chunk.data:
                    break  # The output was removed during the read.
                yield chunk
                offset = chunk.end
            if status.outcome is not None:
                return

    async def kill(self, key: CommandKey, grace_seconds: float = 5.0) -> KillReport:
        """Sends SIGTERM to all processes of the command, and SIGKILL after the grace period. Returns when the result
        has been checked; `escaped` lists the processes found that did not end. For a command that has ended, it kills
        the leftovers."""
        report = (await self._request(KillRequest(key, grace_seconds))).report
        if report is None:
            raise NoSuchCommand(f"no command was started under {key}")
        return report

    async def forget(self, key: CommandKey) -> None:
        """Removes every record of a command that has ended. Its key stays used: nothing starts under it later."""
        await self._request(ForgetRequest(key))

    async def forget_session(self, owner: str, session: str) -> None:
        """Removes every record of the session's ended commands; their keys stay used. Kills nothing: if others still
        run, `CommandRefused` names them, also in its `keys`. Safe to repeat."""
        await self._request(ForgetSessionRequest(owner, session))

    async def listed(self) -> list[CommandStatus]:
        """Returns the commands that have not ended, and those whose known leftovers still run or write."""
        return list((await self._request(ListRequest())).statuses)

    def _reader(self, key: CommandKey) -> OutputReader:
        folder = CommandFolder.of(self._root, key)
        record = folder.record()
        if record is None:
            raise NoSuchCommand(f"no command was started under {key}")
        return OutputReader(folder.path, record.limits.output_bytes)

    async def _request(self, verb: Verb) -> Response:
        """Sends a request and returns its response. Every request is safe to repeat: a key is taken once, and all
        others only read or end something."""
        for _ in range(TRIES):
            client = await self._connected()
            try:
                async with asyncio.timeout(None if isinstance(verb, WatchRequest | KillRequest) else ANSWER_SECONDS):
                    response = await client.request(verb)
            except SupervisorDisconnected:
                continue
            except TimeoutError:
                raise SupervisorUnavailable(
                    f"the supervisor in {self._root} did not answer within {ANSWER_SECONDS:g} seconds"
                ) from None
            if response.error:
                raise (StartTooLate if response.is_late else CommandRefused)(response.error, response.keys)
            return response
        raise SupervisorUnavailable(
            f"the supervisor in {self._root} ended {TRIES} times before it could answer; see supervisor.log there"
        )

    async def _connected(self) -> SupervisorClient:
        async with self._connecting:
            if self._client is not None and self._client.is_open:
                return self._client
            for _ in range(TRIES):
                try:
                    self._client = await SupervisorClient.to(self._root)
                    return self._client
                except SocketPathUnusable as error:
                    raise SupervisorUnavailable(str(error)) from error
                except OSError:
                    # A cancelled caller leaves the launch running, and the next caller waits for the same launch.
                    if self._launching is None or self._launching.done():
                        self._launching = asyncio.create_task(self._launch(), name="commands: launch the supervisor")
                    await asyncio.shield(self._launching)
        raise SupervisorUnavailable(f"the supervisor in {self._root} can't be reached; see supervisor.log there")

    async def _launch(self) -> None:
        """Returns once a supervisor listens. Any number of processes may do this at once."""
        launcher = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-X", "utf8", "-m", "holdfast.commands.supervisor"),
            str(self._root),
            msgspec.json.encode(self._settings).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=for_supervisor(self._environment),
            start_new_session=True,
        )
        _, stderr = await launcher.communicate()
        if launcher.returncode:
            raise SupervisorUnavailable(f"the supervisor can't be started: {stderr.decode('utf-8', 'replace')[-2000:]}")


def _known(key: CommandKey, status: CommandStatus | None) -> CommandStatus:
    if status is None:
        raise NoSuchCommand(f"no command was started under {key}")
    return status
