"""Starts, follows and kills clients' own commands, and runs commands that a person requests and waits for."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Final

from holdfast.commands.command import CommandKey
from holdfast.commands.errors import CommandsError
from holdfast.events.ids import CHOSEN_ID_RULE, Key, may_be_chosen, random_id
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.client_commands import ClientCommandResult, handle_of, process_key, requested_key
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.peer import RpcResult
from holdfast.server.errors import Conflict, Invalid
from holdfast.tasks.desk import GRACE_SECONDS
from holdfast.tools.errors import ToolFailure
from holdfast.tools.shell import checked_command
from holdfast.tools.working_directory import DirectoryRefused, WorkingDirectory, identity_of

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS: Final = 30_000

MAX_ID_CHARACTERS: Final = 200

GRACES: Final = {"SIGTERM": GRACE_SECONDS, "SIGINT": GRACE_SECONDS, "SIGKILL": 0.0}
"""Grace period of each signal before the command is killed. SIGINT is treated as SIGTERM."""


@method("session.shell.exec")
async def execute(call: RpcCall) -> Any:
    """Answer once the command runs, then notify the calling client of its output and its end."""
    attached, process_id = call.attached(), random_id()
    key = process_key(attached.key, process_id)
    command, seconds = _command(call), _seconds(call)
    directory = await _directory(call, attached.key, call.param("cwd", str, ""))
    await call.service.commands.start(key, command, *directory, seconds)

    def follow() -> None:
        if call.connection.attached.get(attached.key.session) is attached:
            following = call.service.commands.do(_send_output(call, process_id, key))
            attached.waits.add(following)
            following.add_done_callback(attached.waits.discard)

    return RpcResult({"processId": process_id}, then=follow)


async def _send_output(call: RpcCall, process_id: str, key: CommandKey) -> None:
    """Send a command's output and exit code to the client, no faster than the client reads."""
    commands, peer = call.service.commands, call.connection.peer
    exit_code = None
    try:
        async with contextlib.aclosing(commands.pieces(key)) as pieces:
            async for stream, text in pieces:
                peer.notify("shell.output", {"processId": process_id, "stream": stream, "data": text})
                await peer.drained()
        exit_code = await commands.exit_code(key)
    except (CommandsError, OSError) as error:
        log.warning("a client's command can't be followed any more: %s", error)
    peer.notify("shell.exit", {"processId": process_id, "exitCode": exit_code})


@method("session.shell.kill")
async def kill(call: RpcCall) -> Any:
    """Kill a command and answer once it has ended. Commands that another process of this machine started are found
    too."""
    attached, process_id = call.attached(), _id(call, "processId")
    signal = call.param("signal", str, "") or "SIGTERM"
    if signal not in GRACES:
        raise Invalid("signal_invalid", f"{signal!r} can't be sent. Use one of {', '.join(GRACES)}.")
    with call.connection.peer.waiting():
        return {"killed": await call.service.commands.kill(process_key(attached.key, process_id), GRACES[signal])}


@method("session.shell.executeUserRequested")
async def execute_user_requested(call: RpcCall) -> Any:
    """Run a command and answer once it has ended. All attached clients see it run; the model does not learn of it."""
    attached, tool_call_id = call.attached(), random_id()
    key = requested_key(attached.key, tool_call_id, _id(call, "requestId"))
    command = _command(call)
    directory = await _directory(call, attached.key)
    await call.service.commands.start(key, command, *directory)
    started = {"toolCallId": tool_call_id, "toolName": "bash", "arguments": {"command": command}}
    attached.hub.publish("tool.user_requested", started)
    attached.hub.publish("tool.execution_start", started)
    # The other clients must see the end even if the calling client leaves.
    ending = call.service.commands.do(_until_ended(call, attached, tool_call_id, key))
    with call.connection.peer.waiting():
        return await asyncio.shield(ending)


async def _until_ended(call: RpcCall, attached: Attached, tool_call_id: str, key: CommandKey) -> dict[str, Any]:
    try:
        finished = await call.service.commands.finished(key)
    except CommandsError as error:
        raise Conflict("outcome_unknown", f"The outcome of the command is unknown: {error}") from error
    result = _result(tool_call_id, finished)
    completed: dict[str, Any] = {"toolCallId": tool_call_id, "success": result["success"]}
    if result["success"]:
        completed["result"] = {"content": result["output"], "detailedContent": result["output"]}
    else:
        completed["error"] = {"message": result["error"], "code": "failure"}
    attached.hub.publish("tool.execution_complete", completed)
    return result


def _result(tool_call_id: str, finished: ClientCommandResult) -> dict[str, Any]:
    outcome = finished.outcome
    success = outcome.reason == "exited" and outcome.exit_code == 0
    result: dict[str, Any] = {"toolCallId": tool_call_id, "success": success, "output": finished.output}
    if outcome.exit_code is not None:
        result["exitCode"] = outcome.exit_code
    if not success:
        result["error"] = finished.errors or _failure_reason(finished)
    return result


def _failure_reason(finished: ClientCommandResult) -> str:
    match finished.outcome.reason:
        case "exited":
            return f"It ended with exit code {finished.outcome.exit_code}."
        case "killed":
            return "It was killed."
        case "time":
            return "It was killed at its time limit."
        case _:
            return finished.outcome.detail or "How it ended is unknown."


@method("session.shell.cancelUserRequested")
async def cancel_user_requested(call: RpcCall) -> Any:
    attached, request_id = call.attached(), _id(call, "requestId")
    commands, key = call.service.commands, attached.key
    try:
        running = await commands.running(key.owner, key.session)
    except CommandsError as error:
        raise Conflict("command_not_killed", f"The command could not be killed: {error}") from error
    matching = [status.key for status in running if handle_of(status.key) == request_id]
    with call.connection.peer.waiting():
        ended = [await commands.kill(command_key) for command_key in matching]
    return {"cancelled": any(ended)}


# Parameters


def _command(call: RpcCall) -> str:
    command = call.text("command")
    try:
        command.encode()
        return checked_command(command)
    except UnicodeEncodeError:
        raise Invalid("command_invalid", "The command is not valid Unicode text.") from None
    except ToolFailure as error:
        raise Invalid("command_invalid", str(error)) from error


def _id(call: RpcCall, name: str) -> str:
    value = call.text(name)
    if len(value) > MAX_ID_CHARACTERS or not may_be_chosen(value):
        raise Invalid("id_invalid", f"{name} has 1 to {MAX_ID_CHARACTERS} characters: {CHOSEN_ID_RULE}.")
    return value


def _seconds(call: RpcCall) -> float:
    timeout_ms = call.param("timeout", int, DEFAULT_TIMEOUT_MS)
    if timeout_ms <= 0:
        raise Invalid("timeout_invalid", "A timeout is a positive number of milliseconds.")
    return timeout_ms / 1000


async def _directory(call: RpcCall, key: Key, name: str = "") -> tuple[str, WorkingDirectory]:
    """The directory that a command runs in, and the root that it may write to: the session's directory if it contains
    that directory, otherwise the directory itself. It must exist."""
    state = await call.service.operations.state(key)
    root = WorkingDirectory.of(
        state.working_directory or str(call.service.settings.directory), state.directory_identity
    )
    try:
        directory = await asyncio.to_thread(_resolved, root, name)
    except DirectoryRefused as error:
        raise Conflict(error.code, str(error)) from error
    except (OSError, RuntimeError, ValueError):
        directory = None
    if directory is None:
        raise Invalid("directory_not_found", f"The directory {name or root} does not exist. Name one that does.")
    if root.identity is not None and (not name or directory.is_relative_to(root)):
        return str(directory if name else root), root
    return str(directory), WorkingDirectory.of(str(directory), identity_of(str(directory)))


def _resolved(root: WorkingDirectory, name: str) -> Path | None:
    """The directory of that name, relative to the session's. Raises DirectoryRefused if the session's was replaced."""
    if name and not os.path.isabs(name):
        with root.opened():
            pass
    path = Path(root, name)
    return path.resolve() if path.is_dir() else None
