"""Commands, as the runtime sees them: start, adopt, look, wait, read, follow, kill. Nothing is kept here that matters.

All of it may be repeated after any crash: what counts is on disk, and the supervisor is started again by whoever misses
it. Output is read from the disk; the supervisor only says when there is more of it.
"""

import asyncio
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
from holdfast.commands.errors import CommandRefused, NoSuchCommand, SupervisorUnavailable
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

TRIES: Final = 4
"""A supervisor may end, or be killed, between any two words."""

ANSWER_SECONDS = 30.0
"""For what is answered at once. One that is stopped, or hangs on a disk, may do it later all the same: adopt."""

FOLLOW_BYTES: Final = 65_536


class Started(msgspec.Struct, frozen=True):
    """The key was ours, and is used up: the command runs, or its status says why it could not be started."""

    status: CommandStatus


class AlreadyThere(msgspec.Struct, frozen=True):
    """Somebody had taken the key. Nothing was started; this is what became of theirs."""

    status: CommandStatus


class Commands:
    """All commands of one data directory. An async context manager; leaving it ends no command."""

    def __init__(
        self, folder: Path, *, settings: SupervisorSettings | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._root = Path(os.path.abspath(folder))
        self._settings = settings or SupervisorSettings()
        self._environment = os.environ if environment is None else environment
        self._line: SupervisorClient | None = None
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
        if self._line is not None:
            await self._line.close()
            self._line = None

    async def folder_id(self) -> str:
        """The name of this folder of commands, given once at random: all that use the folder get the same. On disk when
        it returns."""
        return await asyncio.to_thread(folder_id_of, self._root)

    def session_folder(self, owner: str, session: str) -> Path:
        """Below it is all that the commands of a session wrote. It need not be there."""
        return session_folder(self._root, owner, session)

    async def start(self, key: CommandKey, spec: Spec) -> Started | AlreadyThere:
        """Run a command under a key that nobody has used. When it returns, the key is on disk. If the supervisor dies
        while we ask, the key may be ours and yet be reported as taken: adopt it, as after a crash of our own."""
        whole = msgspec.structs.replace(spec, environment=allowed(self._environment) | spec.environment)
        answer = await self._ask(StartRequest(key, whole))
        status = _known(key, answer.status)
        return Started(status) if answer.created else AlreadyThere(status)

    async def adopt(self, key: CommandKey) -> CommandStatus:
        """What became of a command that somebody may have started. If nobody has, nobody can from now on: its reason is
        `not_started`, and it may be started as the next attempt."""
        return _known(key, (await self._ask(AdoptRequest(key))).status)

    async def status(self, key: CommandKey) -> CommandStatus | None:
        return (await self._ask(StatusRequest(key))).status

    async def wait(self, key: CommandKey, timeout: float | None = None) -> CommandStatus:
        """Its status once it has ended, or when the time is over: then it goes on."""
        try:
            async with asyncio.timeout(timeout):
                return _known(key, (await self._ask(WatchRequest(key))).status)
        except TimeoutError:
            return _known(key, await self.status(key))

    async def wait_for_output(self, key: CommandKey, offset: int, timeout: float | None = None) -> CommandStatus:
        """Its status once there is output beyond `offset`, it has ended, or the time is over."""
        try:
            async with asyncio.timeout(timeout):
                return _known(key, (await self._ask(WatchRequest(key, offset))).status)
        except TimeoutError:
            return _known(key, await self.status(key))

    async def read(self, key: CommandKey, offset: int, length: int, stream: Stream = "both") -> OutputChunk:
        """At most `length` bytes from `offset` on, also while it runs. If `chunk.offset` is larger than what was asked
        for, the bytes between are gone. Of one stream alone, offsets count what that stream wrote."""
        return await asyncio.to_thread(lambda: self._reader(key).read_stream(stream, offset, length))

    async def size(self, key: CommandKey, stream: Stream = "both") -> int:
        return await asyncio.to_thread(lambda: self._reader(key).stream_size(stream))

    async def runs(self, key: CommandKey) -> list[Run]:
        """Which bytes came from which stream."""
        return await asyncio.to_thread(lambda: self._reader(key).runs())

    async def follow(self, key: CommandKey, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """All output from `offset` on, as it comes, until the command has ended and everything was read."""
        reader = await asyncio.to_thread(self._reader, key)
        while True:
            status = _known(key, (await self._ask(WatchRequest(key, offset))).status)
            end = status.outcome.output_bytes if status.outcome else status.output_bytes
            while offset < end:
                chunk = await asyncio.to_thread(reader.read, offset, min(FOLLOW_BYTES, end - offset))
                if not chunk.data:
                    break  # It was removed under us.
                yield chunk
                offset = chunk.end
            if status.outcome is not None:
                return

    async def kill(self, key: CommandKey, grace_seconds: float = 5.0) -> KillReport:
        """Ask all of it to end, and after a grace kill it. Returns when that is done and looked at; what could be found
        and did not end is in `escaped`. Of one that has ended: what it left behind."""
        report = (await self._ask(KillRequest(key, grace_seconds))).report
        if report is None:
            raise NoSuchCommand(f"no command was started under {key}")
        return report

    async def forget(self, key: CommandKey) -> None:
        """Remove all that is known of a command that has ended. Its key is free again: nobody may come back for it."""
        await self._ask(ForgetRequest(key))

    async def forget_session(self, owner: str, session: str) -> None:
        """Remove all that is known of those commands of a session that have ended, and free their keys. Kills nothing:
        if others still run, `CommandRefused` names them, in its `keys` as well. May be repeated."""
        await self._ask(ForgetSessionRequest(owner, session))

    async def listed(self) -> list[CommandStatus]:
        """Those that have not ended, or that left something behind that still runs or writes, as far as is known."""
        return list((await self._ask(ListRequest())).statuses)

    def _reader(self, key: CommandKey) -> OutputReader:
        folder = CommandFolder.of(self._root, key)
        record = folder.record()
        if record is None:
            raise NoSuchCommand(f"no command was started under {key}")
        return OutputReader(folder.path, record.limits.output_bytes)

    async def _ask(self, verb: Verb) -> Response:
        """Every request may be repeated: a key is taken once, and everything else only looks or ends."""
        for _ in range(TRIES):
            line = await self._connected()
            try:
                async with asyncio.timeout(None if isinstance(verb, WatchRequest | KillRequest) else ANSWER_SECONDS):
                    answer = await line.ask(verb)
            except SupervisorDisconnected:
                continue
            except TimeoutError:
                raise SupervisorUnavailable(f"the supervisor in {self._root} does not answer") from None
            if answer.error:
                raise CommandRefused(answer.error, answer.keys)
            return answer
        raise SupervisorUnavailable(f"the supervisor in {self._root} ended {TRIES} times while it was asked")

    async def _connected(self) -> SupervisorClient:
        async with self._connecting:
            if self._line is not None and self._line.is_open:
                return self._line
            for _ in range(TRIES):
                try:
                    self._line = await SupervisorClient.to(self._root)
                    return self._line
                except SocketPathUnusable as error:
                    raise SupervisorUnavailable(str(error)) from error
                except OSError:
                    # Who is cancelled here leaves it to its end, and the next one waits for the same.
                    if self._launching is None or self._launching.done():
                        self._launching = asyncio.create_task(self._launch(), name="commands: launch the supervisor")
                    await asyncio.shield(self._launching)
        raise SupervisorUnavailable(f"the supervisor in {self._root} can't be reached")

    async def _launch(self) -> None:
        """Returns once somebody listens. Any number may do this at once."""
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
        _, told = await launcher.communicate()
        if launcher.returncode:
            raise SupervisorUnavailable(f"the supervisor can't be started: {told.decode('utf-8', 'replace')[-2000:]}")


def _known(key: CommandKey, status: CommandStatus | None) -> CommandStatus:
    if status is None:
        raise NoSuchCommand(f"no command was started under {key}")
    return status
