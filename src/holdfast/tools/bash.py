"""The tools `bash`, `read_bash`, `stop_bash` and `list_bash`: commands under the names that Copilot's models know."""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from holdfast.commands.command import CommandOutcome
from holdfast.commands.errors import CommandNotStarted
from holdfast.events.request import PermissionAsk
from holdfast.store.tasks import TaskEnding
from holdfast.tasks.desk import command_key
from holdfast.tasks.endings import names_of, shortened
from holdfast.tasks.shell import ShellArguments
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import resolve
from holdfast.tools.shell import (
    DEFAULT_WAIT_SECONDS,
    MAX_WAIT_SECONDS,
    NOT_KEPT,
    UNKNOWN_OUTCOME,
    CallCommand,
    ShellCall,
    checked_command,
    ending_in,
    is_gone,
    label,
    shell_of,
    what_is_wrong,
    within,
)
from holdfast.tools.shell_permissions import shell_ask
from holdfast.tools.task_tools import ending_of_row, killed, latest, note_if_gone, reporting_errors
from holdfast.tools.tool import Tool, ToolContext, ToolResult, tool
from holdfast.tools.truncation import Room

MAX_SHELL_ID_CHARACTERS: Final = 64

READ_BYTES: Final = 30_000
"""How much output one read of a running command shows."""

DEFAULT_DELAY_SECONDS: Final = 5.0

BOTH_STREAMS = Room(
    whole_bytes=1_000_000,
    whole_lines=1_000_000,
    head_bytes=500_000,
    head_lines=500_000,
    tail_bytes=500_000,
    tail_lines=500_000,
)

LEFT_BEHIND: Final = "(what it left running in the background goes on, and you will not be told when it ends; "


class Bash(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    command: str
    description: str = ""
    mode: Literal["sync", "async"] = "sync"
    shell_id: str = msgspec.field(name="shellId", default="")
    initial_wait: float | None = None
    timeout: float | None = None
    """An alias of `initial_wait` that some models use."""
    detach: bool = False
    """An alias of `async`: every command here outlives its caller."""

    def seconds(self) -> float:
        return within(self.timeout if self.initial_wait is None else self.initial_wait, DEFAULT_WAIT_SECONDS)

    @property
    def in_background(self) -> bool:
        return self.mode == "async" or self.detach


def _asks(arguments: Bash, working_directory: Path | None) -> PermissionAsk:
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it can't run commands")
    if len(arguments.shell_id) > MAX_SHELL_ID_CHARACTERS:
        raise ToolFailure(f"A shellId has at most {MAX_SHELL_ID_CHARACTERS} characters")
    return shell_ask(checked_command(arguments.command), arguments.description)


def _shell_arguments(arguments: Bash, working_directory: Path | None) -> ShellArguments:
    return ShellArguments(
        command=arguments.command.strip(),
        description=label(arguments.description),
        directory=str(working_directory),
        alias=arguments.shell_id,
    )


async def _bash(arguments: Bash, context: ToolContext) -> ToolResult:
    command = CallCommand(context)
    call = ShellCall(
        command=checked_command(arguments.command),
        directory=str(resolve(".", context.working_directory).real),
        merged=True,
        wait_seconds=None if arguments.in_background else arguments.seconds(),
    )
    try:
        status = await command.carry_out(call)
    except CommandNotStarted as error:
        return command.not_started(error)
    shell_id = command.row.alias or command.row.task_id
    never_ran = status.outcome is not None and status.outcome.reason == "not_started"
    if arguments.in_background and not never_ran:
        message = (
            f"<command started in the background with shellId: {shell_id}. You will be told when it ends; until then "
            "its output is read with read_bash, and stop_bash ends it>"
        )
        return ToolResult(content=message, went_on="started")
    if status.outcome is None:
        return await _flipped(command, shell_id, arguments.seconds())
    ending = ending_in(status)
    text = await command.written("both", BOTH_STREAMS)
    if is_gone(status):
        text += f"<{NOT_KEPT}>"

    text = _with_outcome(text, status.outcome, ending, shell_id)
    return ToolResult(content=text, success=status.outcome.reason == "exited", ending=ending)


async def _flipped(command: CallCommand, shell_id: str, seconds: float) -> ToolResult:
    message = (
        f"{_as_lines(await command.written('both', BOTH_STREAMS))}<command with shellId: {shell_id} is still running. "
        f"{command.why_it_goes_on(seconds)}. No work was lost. You will be told when it ends; until then its output is "
        "read with read_bash, and stop_bash ends it>"
    )
    return ToolResult(content=message, went_on="flipped")


def _with_outcome(text: str, outcome: CommandOutcome, ending: TaskEnding, shell_id: str) -> str:
    wrong = what_is_wrong(outcome, ending)
    if outcome.reason == "not_started":
        return wrong
    if wrong and outcome.exit_code is None:
        return f"{_as_lines(text)}<{wrong}>"
    left = f"{LEFT_BEHIND}stop_bash ends it, with the shellId {shell_id})\n" if outcome.left_behind else ""
    why = f"<{wrong}>\n" if wrong else ""
    return f"{_as_lines(text)}{left}{why}<exited with exit code {outcome.exit_code}>"


def _as_lines(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


bash: Final = Tool(
    name="bash",
    origin="command",
    description="Run a command with bash in the working directory. It has nothing to read from, and what it writes to "
    "both outputs comes back together. Each call is a shell of its own: a changed directory or variable is not there "
    "in the next. A command that does not finish within `initial_wait` seconds is not ended: it goes on in the "
    "background, as one in the mode `async` does, and you will be told when it ends.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command."},
            "description": {"type": "string", "description": "What it does, in a few words, for the person to read."},
            "mode": {
                "type": "string",
                "enum": ["sync", "async"],
                "description": "sync (default): wait for its end. async: let it run in the background at once.",
            },
            "initial_wait": {
                "type": "number",
                "description": "How many seconds to wait in the mode sync. It limits the wait and not the process. "
                f"Default: {DEFAULT_WAIT_SECONDS:g}.",
            },
            "shellId": {
                "type": "string",
                "description": "A name of your own for it, by which read_bash and stop_bash find it.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    arguments=Bash,
    run=_bash,
    asks=_asks,
    after_crash="repeat",
    waits_by_itself=True,
    shell_arguments=_shell_arguments,
)


# Background commands

ShellId = Annotated[str, msgspec.Meta(description="The shellId of a command, as bash or list_bash says it.")]
Delay = Annotated[float, msgspec.Meta(description="Seconds to wait for its end, or for more output than there is now.")]


async def _read_bash(shellId: ShellId, context: ToolContext, delay: Delay = DEFAULT_DELAY_SECONDS) -> str:  # noqa: N803
    """Read the end of what a command has written that runs in the background, and how it ended if it has."""
    shell = shell_of(context)
    async with reporting_errors(shellId, "list_bash"):
        row = await shell.desk.find(context.session, shellId)
        ending = ending_of_row(row)
        if ending is None:
            size = await shell.desk.size(row)
            seconds = max(0.0, min(delay, MAX_WAIT_SECONDS))
            status = await shell.commands.wait_for_output(command_key(row), size, seconds)
            if status.outcome is not None:
                await shell.desk.settle(row, status)
                ending = ending_in(status)
        tail = await shell.desk.tail(row, READ_BYTES)
        gone = "" if tail or ending is None else await note_if_gone(shell.desk, row)
        text = _as_lines(tail or (gone and f"<{gone}>"))
    if ending is None:
        return f"{text}<command with shellId: {shellId} is still running>"
    return f"{text}{_how_it_ended(ending)}"


def _how_it_ended(ending: TaskEnding) -> str:
    why = f"<{ending.detail}>\n" if ending.detail else ""
    match ending.status:
        case "killed":
            return f"{why}<was killed>"
        case "lost":
            return f"{why}<{UNKNOWN_OUTCOME}>"
        case _:
            return why.strip() if ending.exit_code is None else f"{why}<exited with exit code {ending.exit_code}>"


async def _stop_bash(shellId: ShellId, context: ToolContext) -> str:  # noqa: N803
    """End a command that runs in the background, and everything that it started."""
    ending, report = await killed(context, shellId, "list_bash")
    said = f"<command with shellId: {shellId} was ended>" if ending.status == "killed" else _how_it_ended(ending)
    if report is not None and report.killed and ending.status != "killed":
        said = f"<what the command with shellId: {shellId} had left running was ended: {names_of(report.killed)}>"
    if report is not None and report.escaped:
        said += f"\n<still running: {names_of(report.escaped)}>"
    return said


async def _list_bash(context: ToolContext) -> str:
    """List the commands of this session that run in the background, or did."""
    desk = shell_of(context).desk
    rows = latest(await desk.tasks(context.session))
    lines = [
        f"{row.alias or row.task_id}: {desk.shown_status(row)}"
        + (f" (exit code {row.exit_code})" if row.exit_code is not None else "")
        + f": {row.description or shortened(row.command)}"
        for row in map(desk.without_secrets, rows)
    ]
    return "\n".join(lines) or "<no commands in the background>"


read_bash: Final = msgspec.structs.replace(
    tool(name="read_bash", permission="allow", origin="command", after_crash="repeat", read_only=True)(_read_bash),
    waits_by_itself=True,
)
stop_bash: Final = tool(name="stop_bash", permission="allow", origin="command", after_crash="repeat")(_stop_bash)
list_bash: Final = tool(name="list_bash", permission="allow", origin="command", after_crash="repeat", read_only=True)(
    _list_bash
)
