"""Commands that clients run by themselves, outside a turn: on the engine that tools use, confined and bounded alike.

They have no row, and the model is not told of them. All that counts of one is under its key, which its id names: it can
be found and ended after a crash as well. Who follows it is only in memory.
"""

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final, Literal

import msgspec

from holdfast.commands.command import CommandKey, Outcome, Spec, Status, Stream
from holdfast.commands.errors import CommandsError, SupervisorUnavailable
from holdfast.commands.output import STDERR, Chunk
from holdfast.commands.redaction import RedactedStream, Redaction
from holdfast.events.ids import Key
from holdfast.server.errors import Conflict, OperationError
from holdfast.tasks.desk import GRACE_SECONDS
from holdfast.tasks.shell import Shell
from holdfast.tools.truncation import MARGIN_BYTES, STREAM, cut, cut_start, decoded
from holdfast.tools.working_directory import DirectoryRefused, WorkingDirectory, place_to_start

log = logging.getLogger(__name__)

MAX_RUNNING: Final = 20
"""Commands of the clients of one session that run at once."""

MAX_TURNS_TOLD_APART: Final = 10_000
"""A command whose two outputs take turns more often is told as if it had one: looking up who wrote what takes time."""

PROCESS: Final = "client"
REQUESTED: Final = "user"
"""Kinds of keys. Those of tool calls begin with the id of a message, and are never like them."""

StreamName = Literal["stdout", "stderr"]


class ClientCommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command wrote, bounded, and how it ended."""

    output: str
    errors: str
    outcome: Outcome


class Shown:
    """Bytes of one stream, piece by piece as they come, as text that may be shown."""

    def __init__(self, redaction: Redaction, *, is_cut: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = RedactedStream(redaction, is_cut=is_cut)

    def next(self, data: bytes) -> str:
        return self._stream.next(self._decoder.decode(data))

    def end(self) -> str:
        return self._stream.next(self._decoder.decode(b"", final=True)) + self._stream.end()


def process_key(key: Key, process_id: str) -> CommandKey:
    return CommandKey(key.owner, key.session, f"{PROCESS}:{process_id}", 1)


def requested_key(key: Key, tool_call_id: str, request_id: str) -> CommandKey:
    return CommandKey(key.owner, key.session, f"{REQUESTED}:{tool_call_id}:{request_id}", 1)


def handle_of(key: CommandKey) -> str | None:
    """The name by which a client may end what it requested; not every command has one."""
    kind, _, rest = key.tool_call.partition(":")
    return rest.partition(":")[2] if kind == REQUESTED else None


class ClientCommands:
    """One per process."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._commands = shell.commands
        self._starting = asyncio.Lock()
        self._at_work: set[asyncio.Task[Any]] = set()

    def do(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Beside whatever asked for it, until its end or that of this process."""
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._at_work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OperationError):
            log.error("a client's command could not be followed", exc_info=error)

    async def close(self) -> None:
        """Nobody is told anything any more. The commands go on."""
        at_work = list(self._at_work)
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)

    async def start(
        self, key: CommandKey, command: str, directory: str, root: WorkingDirectory, seconds: float | None = None
    ) -> None:
        """It runs when this returns, in a directory that lies in that root. Raises `Conflict`: then it does not, and
        will not."""
        async with self._starting:  # Two that come at once must not both find the last free place.
            try:
                self._check_room(key, await self.running(key.owner, key.session))
                with place_to_start(directory, root, by_root=self._shell.isolation.binds_directory) as place:
                    status = await self._started(key, self._spec(command, directory, root, place, seconds))
            except DirectoryRefused as error:
                raise Conflict(error.code, str(error)) from error
            except CommandsError as error:
                raise Conflict("command_not_started", f"The command can't be started: {error}") from error
        outcome = status.outcome
        if outcome is not None and outcome.reason == "not_started":
            raise Conflict("command_not_started", f"The command can't be started: {outcome.detail}")

    def _check_room(self, key: CommandKey, running: list[Status]) -> None:
        if len(running) >= MAX_RUNNING:
            text = f"{MAX_RUNNING} commands of this session's clients run already. Wait until one ends, or kill one."
            raise Conflict("too_many_commands", text)
        handle = handle_of(key)
        if handle is not None and any(handle_of(status.key) == handle for status in running):
            raise Conflict("request_running", f"What was requested as {handle!r} still runs. Use another id.")

    def _spec(self, command: str, directory: str, root: WorkingDirectory, place: str, seconds: float | None) -> Spec:
        limits = self._shell.limits
        if seconds is not None:
            limits = msgspec.structs.replace(limits, seconds=min(seconds, limits.seconds or seconds))
        return Spec(
            command=command,
            directory=place,
            environment=self._shell.environment,
            limits=limits,
            inside=self._shell.isolation.inside(directory, root=str(root.real())),
            wrapper=self._shell.isolation.program,
        )

    async def _started(self, key: CommandKey, spec: Spec) -> Status:
        try:
            return (await self._commands.start(key, spec)).status
        except SupervisorUnavailable:
            # It may have heard us all the same. If not, the key is used up now, and nothing can start under it later.
            return await self._commands.adopt(key)

    async def running(self, owner: str, session: str) -> list[Status]:
        """Those of a session's clients, whichever process they were started by."""
        return [
            status
            for status in await self._commands.listed()
            if (status.key.owner, status.key.session) == (owner, session)
            and status.key.tool_call.partition(":")[0] in (PROCESS, REQUESTED)
            and status.outcome is None
        ]

    async def kill(self, key: CommandKey, grace_seconds: float = GRACE_SECONDS) -> bool:
        """Whether it ran. It has ended when this returns, with all that could be found of it."""
        try:
            status = await self._commands.status(key)
            if status is None or status.outcome is not None:
                return False
            await self._commands.kill(key, grace_seconds)
        except CommandsError as error:
            raise Conflict("command_not_killed", f"The command could not be killed: {error}") from error
        return True

    # What it writes

    async def pieces(self, key: CommandKey) -> AsyncGenerator[tuple[StreamName, str], None]:
        """What it wrote and writes, fit to be shown, until it ends."""
        streams = self._streams()
        end, apart = 0, True
        async for chunk in self._commands.follow(key):
            if chunk.offset > end:
                streams = self._streams(is_cut=True)
                yield "stdout", f"\n[… {chunk.offset - end:,} bytes are not kept …]\n"
            end = chunk.end
            told = await self._told_apart(key, chunk) if apart else None
            apart = told is not None
            for stream, data in told or [("stdout", chunk.data)]:
                if text := streams[stream].next(data):
                    yield stream, text
        for stream, rest in streams.items():
            if text := rest.end():
                yield stream, text

    def _streams(self, *, is_cut: bool = False) -> "dict[StreamName, Shown]":
        redaction = self._shell.desk.redaction
        return {"stdout": Shown(redaction, is_cut=is_cut), "stderr": Shown(redaction, is_cut=is_cut)}

    async def _told_apart(self, key: CommandKey, chunk: Chunk) -> list[tuple[StreamName, bytes]] | None:
        """By the stream that the bytes came from; None if the streams took turns too often."""
        runs = await self._commands.runs(key)
        if len(runs) > MAX_TURNS_TOLD_APART:
            return None
        found: list[tuple[StreamName, bytes]] = []
        for run in runs:
            data = chunk.data[max(0, run.start - chunk.offset) : max(0, run.end - chunk.offset)]
            if data:
                found.append(("stderr" if run.stream == STDERR else "stdout", data))
        return found

    async def exit_code(self, key: CommandKey) -> int | None:
        """Of one that has ended; None if nobody knows."""
        outcome = (await self._commands.wait(key)).outcome
        return outcome.exit_code if outcome is not None else None

    async def finished(self, key: CommandKey) -> ClientCommandResult:
        """Once it has ended."""
        status = await self._commands.wait(key)
        assert status.outcome is not None
        return ClientCommandResult(
            output=await self._written(status, "both"),
            errors=await self._written(status, "stderr"),
            outcome=status.outcome,
        )

    async def _written(self, status: Status, stream: Stream) -> str:
        """Of a long output the beginning and the end."""
        size = await self._commands.size(status.key, stream)
        if size <= STREAM.whole_bytes:
            head = tail = await self._text(status.key, stream, 0, size)
            if STREAM.holds(head):
                return head
        else:
            last = min(size, STREAM.tail_bytes + MARGIN_BYTES)
            head = await self._text(status.key, stream, 0, STREAM.head_bytes + MARGIN_BYTES)
            tail = await self._text(status.key, stream, size - last, last)
        return cut(head, tail, size, STREAM, status.output_file)

    async def _text(self, key: CommandKey, stream: Stream, offset: int, length: int) -> str:
        data = (await self._commands.read(key, offset, length, stream)).data
        return decoded(cut_start(data) if offset else data, self._shell.desk.redaction.text)

    # The end of a session

    def forget_session(self, key: Key) -> None:
        """The session was deleted: what its clients run is ended, and what its commands wrote goes, as soon as may be.
        A crash before that leaves it to the ceilings of time and of retention."""
        if self._commands.session_folder(key.owner, key.session).exists():
            self.do(self._forget_session(key))

    async def _forget_session(self, key: Key) -> None:
        try:
            for status in await self.running(key.owner, key.session):
                await self._commands.kill(status.key, GRACE_SECONDS)
            await self._commands.forget_session(key.owner, key.session)
        except CommandsError as error:
            log.info("not all commands of a deleted session are forgotten yet: %s", error)
