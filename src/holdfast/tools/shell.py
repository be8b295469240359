"""The tool `bash`: one command, from its start to its end. It is never run twice: it outlives a crash of the runtime,
and the next attempt at the call goes on watching it. Only if its supervisor died too is the model told that nobody
knows.
"""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.commands.command import CommandKey, Limits, Outcome, Spec, Status
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandsError, SupervisorUnavailable
from holdfast.events.request import PermissionAsk
from holdfast.tools.environment import without_secrets
from holdfast.tools.errors import ToolFailure
from holdfast.tools.processes import GRACE_SECONDS, Output, Program, started, watcher
from holdfast.tools.shell_permissions import shell_ask
from holdfast.tools.tool import Tool, ToolContext, ToolResult

DEFAULT_TIMEOUT_SECONDS = 120.0
MAX_TIMEOUT_SECONDS = 290.0
"""Less than the bound that a session has for every tool: that one would take the output away as well."""

MAX_COMMAND_CHARACTERS = 30_000
"""The system takes 128 KiB for one argument, whatever its characters are."""

MAX_OUTPUT_BYTES = 1_000_000
"""Of a longer output the beginning and the end are kept."""

DRAIN_SECONDS = 0.5
"""For what is still in the pipe when the shell has ended. A child in the background may hold it open for ever."""

FLOOD_PAUSE_SECONDS = 0.001
"""After every piece that is not kept: a command that writes without end must not take all of our time."""

REPORT_SECONDS = 0.2
REPORT_BYTES = 4_000
"""How often people are shown what a command wrote, and how much of it."""

UNKNOWN_OUTCOME = "Nobody saw how this command ended. Whether it took effect is unknown: check before doing it again."

LEFT_BEHIND = "(what it left running in the background goes on; its output is no longer read)"


class Bash(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    command: str
    description: str = ""
    timeout: float | None = None
    mode: Literal["sync", "async"] = "sync"
    """This and what follows is what models that know Copilot's shell may add. They are not told of it."""
    detach: bool = False
    initial_wait: float | None = None
    shell_id: str = msgspec.field(name="shellId", default="")

    def seconds(self) -> float:
        wanted = DEFAULT_TIMEOUT_SECONDS if self.timeout is None else self.timeout
        return max(1.0, min(wanted, MAX_TIMEOUT_SECONDS))


def _asks(arguments: Bash, working_directory: Path | None) -> PermissionAsk:
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it can't run commands")
    return shell_ask(_command(arguments), arguments.description)


def _command(arguments: Bash) -> str:
    command = arguments.command.strip()
    if not command:
        raise ToolFailure("command is required")
    if "\0" in command:
        raise ToolFailure("A command can't contain a NUL character")
    if len(command) > MAX_COMMAND_CHARACTERS:
        raise ToolFailure(f"A command has at most {MAX_COMMAND_CHARACTERS:,} characters; put a longer one into a file")
    if arguments.mode == "async" or arguments.detach:
        raise ToolFailure("Commands can't be run in the background here: leave out mode and detach")
    return command


async def _bash(arguments: Bash, context: ToolContext) -> str | ToolResult:
    if context.commands is not None:
        return await _supervised(arguments, context, context.commands)
    if context.attempt > 1:
        raise ToolFailure(UNKNOWN_OUTCOME)
    return await _as_our_child(arguments, context)


async def _supervised(arguments: Bash, context: ToolContext, commands: Commands) -> str | ToolResult:
    """Run it under the supervisor, which outlives us. Every attempt at the call has the same key: the first starts the
    command, and any later one, after a crash, goes on watching it or learns how it ended."""
    key = CommandKey(context.owner, context.session_id, context.key, 1)
    seconds = arguments.seconds()
    spec = Spec(
        command=_command(arguments),
        directory=str(context.working_directory),
        environment=without_secrets(os.environ),
        limits=Limits(seconds=seconds),
        merged=True,
        shell=_shell()[0],
    )
    try:
        status = await _ended(commands, key, spec, context)
    except CommandsError as error:
        raise ToolFailure(f"The command can't be run: {error}") from error
    assert status.outcome is not None
    return _told(await _written(commands, key, status.outcome.output_bytes), status.outcome, seconds)


async def _ended(commands: Commands, key: CommandKey, spec: Spec, context: ToolContext) -> Status:
    """Start it, or go on watching it, until its end. A stop ends it; a process that lets go of the session does not,
    since the next holder may be watching it already."""
    report = Report(context)
    try:
        try:
            await commands.start(key, spec)
        except SupervisorUnavailable:
            await commands.adopt(key)
        async for chunk in commands.follow(key):
            report.add(chunk.data)
        return await commands.wait(key)
    except asyncio.CancelledError:
        if context.is_interrupted():
            await asyncio.shield(_kill(commands, key))
        raise
    finally:
        report.close()


async def _kill(commands: Commands, key: CommandKey) -> None:
    with contextlib.suppress(CommandsError):  # It had not started.
        await commands.kill(key, GRACE_SECONDS)


async def _written(commands: Commands, key: CommandKey, size: int) -> str:
    """What it wrote; of a long output the beginning and the end."""
    if size <= MAX_OUTPUT_BYTES:
        return (await commands.read(key, 0, size)).data.decode("utf-8", "replace")
    half = MAX_OUTPUT_BYTES // 2
    head = cut_end(bytearray((await commands.read(key, 0, half)).data))
    tail = cut_start(bytearray((await commands.read(key, size - half, half)).data))
    return _cut(head, size - len(head) - len(tail), tail)


def _told(text: str, outcome: Outcome, seconds: float) -> str | ToolResult:
    match outcome.reason:
        case "exited":
            return _result(text, Ending(outcome.exit_code, bool(outcome.left_behind)), seconds)
        case "time":
            return _result(text, Ending(None, False), seconds)
        case "not_started":
            raise ToolFailure(f"The command can't be started: {outcome.detail}")
        case "killed" | "lost":
            raise ToolFailure(UNKNOWN_OUTCOME)


async def _as_our_child(arguments: Bash, context: ToolContext) -> str | ToolResult:
    kept, report = Kept(MAX_OUTPUT_BYTES), Report(context)
    line = (*_shell(), _command(arguments))
    seconds = arguments.seconds()
    try:
        async with (
            watcher() as watch,
            started(line, environment=without_secrets(os.environ), directory=context.working_directory) as program,
        ):
            watch(program.group)
            ending = await _follow(program, kept, report, seconds)
    except OSError as error:
        raise ToolFailure(f"The command can't be started: {error.strerror}") from error
    finally:
        report.close()
    return _result(kept.text(), ending, seconds)


def _shell() -> tuple[str, ...]:
    bash = "/bin/bash" if os.access("/bin/bash", os.X_OK) else shutil.which("bash")
    return (bash, "--noprofile", "--norc", "-c") if bash else ("/bin/sh", "-c")


class Ending(msgspec.Struct, frozen=True):
    exit_code: int | None
    """None: it took too long and was ended."""
    left_something: bool


async def _follow(program: Program, kept: "Kept", report: "Report", seconds: float) -> Ending:
    """Read what it writes until it ends, and then what is left of that."""
    collecting = asyncio.create_task(_collect(program.output, kept, report))
    code: int | None = None
    try:
        try:
            async with asyncio.timeout(seconds):
                code = await program.exit_code()
        except TimeoutError:
            # A stop that comes now must not save what refuses to end: the shell itself may be gone already.
            await asyncio.shield(program.end())
        await asyncio.wait([collecting], timeout=DRAIN_SECONDS)
        return Ending(code, left_something=not collecting.done())
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])


async def _collect(output: Output, kept: "Kept", report: "Report") -> None:
    while chunk := await output.read():
        kept.add(chunk)
        report.add(chunk)
        await asyncio.sleep(FLOOD_PAUSE_SECONDS if kept.is_full else 0)


def _result(text: str, ending: Ending, seconds: float) -> str | ToolResult:
    output = text if not text or text.endswith("\n") else text + "\n"
    if ending.exit_code is None:
        said = f"{output}<did not finish within {seconds:g} seconds and was ended>"
        return ToolResult(content=said, success=False)
    if ending.left_something:
        output += LEFT_BEHIND + "\n"
    return f"{output}<exited with exit code {ending.exit_code}>"


class Kept:
    """The beginning and the end of what a command writes, however long that is."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def is_full(self) -> bool:
        return self._dropped > 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._half:
            self._drop(len(self._tail) - self._half)

    def _drop(self, count: int) -> None:
        self._dropped += count
        del self._tail[:count]

    def text(self) -> str:
        if len(self._tail) > self._half:
            self._drop(len(self._tail) - self._half)
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = cut_end(self._head), cut_start(self._tail)
        gone = self._dropped + len(self._head) - len(head) + len(self._tail) - len(tail)
        return _cut(head, gone, tail)


def _cut(head: bytearray, gone: int, tail: bytearray) -> str:
    between = f"\n[… {gone:,} bytes are left out here …]\n"
    return head.decode("utf-8", "replace") + between + tail.decode("utf-8", "replace")


def cut_start(data: bytearray) -> bytearray:
    """Without the rest of a character whose beginning is gone."""
    nowhere = len(data) if len(data) < 4 else 0
    return data[next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), nowhere) :]


def cut_end(data: bytearray) -> bytearray:
    """Without the beginning of a character whose rest is gone."""
    for at in range(len(data) - 1, max(-1, len(data) - 4), -1):
        if data[at] & 0xC0 == 0xC0:
            length = 2 if data[at] < 0xE0 else 3 if data[at] < 0xF0 else 4
            return data[:at] if at + length > len(data) else data
        if data[at] < 0x80:
            break
    return data


class Report:
    """Shows people what a command writes while it runs: the latest of it, now and then."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._latest = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, chunk: bytes) -> None:
        self._latest += chunk[-REPORT_BYTES:]
        del self._latest[:-REPORT_BYTES]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._show)

    def _show(self) -> None:
        self._timer = None
        whole = cut_end(self._latest)
        rest = self._latest[len(whole) :]
        self._context.progress(cut_start(whole).decode("utf-8", "replace"))
        self._latest = rest

    def close(self) -> None:
        """What was not shown yet is in the result."""
        if self._timer is not None:
            self._timer.cancel()


bash = Tool(
    name="bash",
    description="Run a command with bash in the working directory and wait for its end. It has nothing to read from, "
    "and what it writes to both outputs comes back together. Each call is a shell of its own: a changed directory or "
    "variable is not there in the next.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command."},
            "description": {"type": "string", "description": "What it does, in a few words, for the person to read."},
            "timeout": {
                "type": "number",
                "description": f"Seconds after which it is ended. Default: {DEFAULT_TIMEOUT_SECONDS:g}, at most "
                f"{MAX_TIMEOUT_SECONDS:g}.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    arguments=Bash,
    run=_bash,
    asks=_asks,
    after_crash="repeat",
)
