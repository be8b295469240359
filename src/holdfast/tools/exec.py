"""The tool `exec`: runs a command in the foreground, in the background, or first in the one and then in the other."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.commands.command import CommandOutcome, CommandStatus
from holdfast.commands.errors import CommandNotStarted
from holdfast.events.request import PermissionAsk
from holdfast.tasks.endings import names_of
from holdfast.tasks.shell import ShellArguments
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import ResolvedPath, resolve
from holdfast.tools.shell import (
    DEFAULT_WAIT_SECONDS,
    NOT_KEPT,
    CallCommand,
    ShellCall,
    checked_command,
    ending_in,
    is_gone,
    label,
    what_is_wrong,
    within,
)
from holdfast.tools.shell_permissions import shell_ask
from holdfast.tools.sleep_detection import BLOCKED_SECONDS, long_sleep
from holdfast.tools.tool import Tool, ToolContext, ToolResult
from holdfast.tools.truncation import STREAM

LEFT_BEHIND: Final = "It left something running, which goes on; you will not be told when it ends"


class Exec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    command: str
    work_dir: str | None = None
    description: str = ""
    timeout: float | None = None
    run_in_background: bool = False

    def seconds(self) -> float:
        return within(self.timeout, DEFAULT_WAIT_SECONDS)


def _asks(arguments: Exec, working_directory: Path | None) -> PermissionAsk:
    target = _directory(arguments, working_directory)
    command = checked_command(arguments.command)
    slept = None if arguments.run_in_background else long_sleep(command)
    if slept is not None:
        raise ToolFailure(
            f"blocked: sleep {slept} is not allowed in foreground execution. Run a command that has to wait with "
            f"run_in_background: true, and a notification will tell you of its end; or sleep for less than "
            f"{BLOCKED_SECONDS:g} seconds."
        )
    ask = shell_ask(command, arguments.description)
    if target.real == target.root:
        return ask
    paths = [str(target.real), *ask.details["possiblePaths"]]

    changes = {"intention": f"{ask.details['intention']} (in {target.subject})", "possiblePaths": paths}
    return msgspec.structs.replace(ask, subject=_subject(command, target), details={**ask.details, **changes})


def _subject(command: str, target: ResolvedPath) -> str:
    """The text that permission rules are matched with: an approval for one directory does not hold for all. No command
    ends with a space, and no directory in this form has a parenthesis, so no command in another directory has the same
    subject."""
    if target.real == target.root:
        return command
    directory = re.sub(r"[\s()%]", lambda found: f"%{ord(found[0]):02X}", target.subject)
    return f"{command} (in {directory}) "


def _directory(arguments: Exec, working_directory: Path | None) -> ResolvedPath:
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it can't run commands")
    target = resolve(arguments.work_dir or ".", working_directory)
    if not target.inside:
        raise ToolFailure(
            f"work_dir must be inside the working directory, {target.root}; {target.requested} leads to {target.real}"
        )
    return target


def _permitted_directory(arguments: Exec, context: ToolContext) -> ResolvedPath:
    """Resolves the directory again when the command runs. A link that leads elsewhere by now leads to a place that was
    not permitted."""
    target = _directory(arguments, context.working_directory)
    permitted = context.permitted
    if permitted is not None and permitted.subject != _subject(checked_command(arguments.command), target):
        raise ToolFailure(f"{target.requested} leads elsewhere than it did when this was permitted; nothing was done")
    return target


def _shell_arguments(arguments: Exec, working_directory: Path | None) -> ShellArguments:
    """Never refuses: errors were reported when permission was requested, or are reported when the command runs."""
    try:
        directory = str(_directory(arguments, working_directory).real)
    except ToolFailure:
        directory = str(working_directory)
    command = arguments.command.strip()
    return ShellArguments(command=command, description=label(arguments.description), directory=directory)


async def _exec(arguments: Exec, context: ToolContext) -> ToolResult:
    command = CallCommand(context)
    call = ShellCall(
        command=checked_command(arguments.command),
        directory=str(_permitted_directory(arguments, context).real),
        wait_seconds=None if arguments.run_in_background else arguments.seconds(),
    )
    try:
        status = await command.carry_out(call)
    except CommandNotStarted as error:
        return command.not_started(error)
    never_ran = status.outcome is not None and status.outcome.reason == "not_started"
    if arguments.run_in_background and not never_ran:
        return _started(command)
    if status.outcome is None:
        return await _flipped(command, arguments.seconds())
    return await _ended(command, status, status.outcome)


async def _ended(command: CallCommand, status: CommandStatus, outcome: CommandOutcome) -> ToolResult:
    ending = ending_in(status)
    wrong = what_is_wrong(outcome, ending)
    if outcome.reason == "not_started":
        return ToolResult(content=wrong, success=False, ending=ending)
    result: dict[str, Any] = {
        "stdout": await command.written("stdout", STREAM),
        "stderr": await command.written("stderr", STREAM),
        "exit_code": outcome.exit_code,
    }
    if wrong:
        result["error"] = wrong
    if notes := _notes(command, status, outcome):
        result["note"] = " ".join(notes)
    return ToolResult(content=_json(result), success=not wrong, ending=ending)


def _notes(command: CallCommand, status: CommandStatus, outcome: CommandOutcome) -> list[str]:
    notes = [NOT_KEPT] if is_gone(status) else []
    if outcome.left_behind:
        left = names_of(outcome.left_behind)
        notes.append(f"{LEFT_BEHIND}: {left}. kill_task ends it, with the task_id {command.row.task_id}.")
    return notes


def _started(command: CallCommand) -> ToolResult:
    row = command.row
    result = {
        "status": "background_started",
        "task_id": row.task_id,
        "output_file": row.output_file,
        "message": f"The command runs in the background as task {row.task_id}. A notification will come by itself when "
        "it ends: polling or sleeping is not needed. Go on with something else, or finish.",
    }
    return ToolResult(content=_json(result), went_on="started")


async def _flipped(command: CallCommand, seconds: float) -> ToolResult:
    row = command.row
    result = {
        "status": "auto_backgrounded",
        "task_id": row.task_id,
        "output_file": row.output_file,
        "output_tail": await command.tail(),
        "message": f"{command.why_it_goes_on(seconds)}; no work was lost. The same process is still running, as task "
        f"{row.task_id}. A notification will come by itself when it ends: do not start it again, and do not poll or "
        "sleep. Next time use run_in_background: true for a command that takes this long.",
    }
    return ToolResult(content=_json(result), went_on="flipped")


def _json(result: dict[str, Any]) -> str:
    return msgspec.json.encode(result).decode()


exec_tool: Final = Tool(
    name="exec",
    origin="command",
    description="Run a shell command (bash) in the working directory. It has nothing to read from, and each call is a "
    "shell of its own: a changed directory or variable is not there in the next. A command that does not finish within "
    "`timeout` seconds is not ended: it goes on in the background, as one that was started with `run_in_background` "
    "does, and a notification tells you of its end. So there is no need to poll, to sleep, or to keep commands short.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command."},
            "work_dir": {
                "type": "string",
                "description": "Where it runs: a directory inside the working directory. Default: the working "
                "directory itself.",
            },
            "description": {"type": "string", "description": "What it does, in a few words, for people and for lists."},
            "timeout": {
                "type": "number",
                "description": "How many seconds to wait for it in the foreground. It limits the wait and not the "
                f"process, which runs on in the background after that. Default: {DEFAULT_WAIT_SECONDS:g}.",
            },
            "run_in_background": {
                "type": "boolean",
                "description": "Do not wait at all: for servers, watchers, long builds and tests.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    arguments=Exec,
    run=_exec,
    asks=_asks,
    after_crash="repeat",
    waits_by_itself=True,
    shell_arguments=_shell_arguments,
)
