"""Commands that clients run outside a turn, on the same engine as tools: with the same sandbox and the same limits.

They have no row, and the model does not learn of them. The supervisor keeps each under its key, which is derived from
the client's id, so that it can be found and killed even after a crash. Followers of its output are only in memory.
"""

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final, Literal

import msgspec

from holdfast.commands.command import CommandKey, CommandOutcome, CommandStatus, Spec, Stream
from holdfast.commands.errors import CommandsError, SupervisorUnavailable
from holdfast.commands.output import STDERR, OutputChunk
from holdfast.commands.redaction import RedactedStream, Redaction
from holdfast.events.ids import Key
from holdfast.server.errors import Conflict, OperationError
from holdfast.tasks.desk import GRACE_SECONDS
from holdfast.tasks.shell import Shell
from holdfast.tools.truncation import MARGIN_BYTES, STREAM, cut, cut_start, decoded
from holdfast.tools.working_directory import DirectoryRefused, WorkingDirectory, place_to_start

log = logging.getLogger(__name__)

MAX_RUNNING: Final = 20
"""Commands that the clients of one session may run at once."""

MAX_STREAM_SWITCHES: Final = 10_000
"""After this many switches between stdout and stderr all output is sent as stdout: the lookup of each piece costs
time."""

PROCESS: Final = "client"
REQUESTED: Final = "user"
"""Kinds of keys. The keys of tool calls begin with a message id, so they never collide with these."""

StreamName = Literal["stdout", "stderr"]


class ClientCommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The bounded output of a command, and its outcome."""

    output: str
    errors: str
    outcome: CommandOutcome


class RedactedText:
    """Decodes the bytes of one stream, piece by piece, into text without known secrets."""

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
    """The request id by which a client can cancel a command; None for commands started by `session.shell.exec`."""
    kind, _, rest = key.tool_call.partition(":")
    return rest.partition(":")[2] if kind == REQUESTED else None


class ClientCommands:
    """Starts, follows and kills the commands of this process's clients."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._commands = shell.commands
        self._starting = asyncio.Lock()
        self._at_work: set[asyncio.Task[Any]] = set()

    def do(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run `work` in the background until it ends or this process closes."""
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
        """Stop following all commands. The commands themselves go on."""
        at_work = list(self._at_work)
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)

    async def start(
        self, key: CommandKey, command: str, directory: str, root: WorkingDirectory, seconds: float | None = None
    ) -> None:
        """Start a command in a directory inside `root`; it runs on return. After `Conflict` it does not run, and never
        will."""
        async with self._starting:  # Two concurrent starts must not both take the last free slot.
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

    def _check_room(self, key: CommandKey, running: list[CommandStatus]) -> None:
        if len(running) >= MAX_RUNNING:
            text = f"{MAX_RUNNING} commands of this session's clients run already. Wait until one ends, or kill one."
            raise Conflict("too_many_commands", text)
        handle = handle_of(key)
        if handle is not None and any(handle_of(status.key) == handle for status in running):
            raise Conflict(
                "request_running", f"The command requested as {handle!r} still runs. Use another request id."
            )

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
            filter=self._shell.isolation.filter,
            wrapper=self._shell.isolation.program,
        )

    async def _started(self, key: CommandKey, spec: Spec) -> CommandStatus:
        try:
            return (await self._commands.start(key, spec)).status
        except SupervisorUnavailable:
            # The supervisor may have received the request. If not, adopting uses the key up: nothing starts under it
            # later.
            return await self._commands.adopt(key)

    async def running(self, owner: str, session: str) -> list[CommandStatus]:
        """The running commands of a session's clients, started by any process."""
        return [
            status
            for status in await self._commands.listed()
            if (status.key.owner, status.key.session) == (owner, session)
            and status.key.tool_call.partition(":")[0] in (PROCESS, REQUESTED)
            and status.outcome is None
        ]

    async def kill(self, key: CommandKey, grace_seconds: float = GRACE_SECONDS) -> bool:
        """Kill a command and the processes it started, and return whether it ran. It has ended on return."""
        try:
            status = await self._commands.status(key)
            if status is None or status.outcome is not None:
                return False
            await self._commands.kill(key, grace_seconds)
        except CommandsError as error:
            raise Conflict("command_not_killed", f"The command could not be killed: {error}") from error
        return True

    # Output

    async def pieces(self, key: CommandKey) -> AsyncGenerator[tuple[StreamName, str], None]:
        """The command's output from its start to its end, redacted, with the stream of each piece."""
        streams = self._streams()
        end, is_separable = 0, True
        async for chunk in self._commands.follow(key):
            if chunk.offset > end:
                streams = self._streams(is_cut=True)
                yield "stdout", f"\n[… {chunk.offset - end:,} bytes are not kept …]\n"
            end = chunk.end
            pieces = await self._by_stream(key, chunk) if is_separable else None
            is_separable = pieces is not None
            for stream, data in pieces or [("stdout", chunk.data)]:
                if text := streams[stream].next(data):
                    yield stream, text
        for stream, rest in streams.items():
            if text := rest.end():
                yield stream, text

    def _streams(self, *, is_cut: bool = False) -> "dict[StreamName, RedactedText]":
        redaction = self._shell.desk.redaction
        return {"stdout": RedactedText(redaction, is_cut=is_cut), "stderr": RedactedText(redaction, is_cut=is_cut)}

    async def _by_stream(self, key: CommandKey, chunk: OutputChunk) -> list[tuple[StreamName, bytes]] | None:
        """The chunk split by the stream of its bytes; None if the streams switch too often."""
        runs = await self._commands.runs(key)
        if len(runs) > MAX_STREAM_SWITCHES:
            return None
        pieces: list[tuple[StreamName, bytes]] = []
        for run in runs:
            data = chunk.data[max(0, run.start - chunk.offset) : max(0, run.end - chunk.offset)]
            if data:
                pieces.append(("stderr" if run.stream == STDERR else "stdout", data))
        return pieces

    async def exit_code(self, key: CommandKey) -> int | None:
        """Wait for the end and return the exit code; None if it is unknown."""
        outcome = (await self._commands.wait(key)).outcome
        return outcome.exit_code if outcome is not None else None

    async def finished(self, key: CommandKey) -> ClientCommandResult:
        """Wait for the end and return the result."""
        status = await self._commands.wait(key)
        assert status.outcome is not None
        return ClientCommandResult(
            output=await self._written(status, "both"),
            errors=await self._written(status, "stderr"),
            outcome=status.outcome,
        )

    async def _written(self, status: CommandStatus, stream: Stream) -> str:
        """The output, or the beginning and the end of a long one."""
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
        """Kill the commands of a deleted session's clients and delete all output of its commands, in the background.
        After a crash before that, the limits on time and retention do it."""
        if self._commands.session_folder(key.owner, key.session).exists():
            self.do(self._forget_session(key))

    async def _forget_session(self, key: Key) -> None:
        try:
            for status in await self.running(key.owner, key.session):
                await self._commands.kill(status.key, GRACE_SECONDS)
            await self._commands.forget_session(key.owner, key.session)
        except CommandsError as error:
            log.info("not all commands of a deleted session are forgotten yet: %s", error)
