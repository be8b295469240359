"""Commands of a client's own: started, followed, killed; and those that a person asks for and waits for."""

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
"""How long a command may take to end by itself after a signal. There is one way to ask it, whatever the signal is."""


@method("session.shell.exec")
async def execute(call: RpcCall) -> Any:
    """Answered when it runs. What it writes and its end are told to the client that asked, behind the answer."""
    attached, process_id = call.attached(), random_id()
    key = process_key(attached.key, process_id)
    command, seconds = _command(call), _seconds(call)
    directory = await _directory(call, attached.key, call.param("cwd", str, ""))
    await call.service.commands.start(key, command, *directory, seconds)

    def follow() -> None:
        if call.connection.attached.get(attached.key.session) is attached:
            telling = call.service.commands.do(_tell(call, process_id, key))
            attached.waits.add(telling)
            telling.add_done_callback(attached.waits.discard)

    return RpcResult({"processId": process_id}, then=follow)


async def _tell(call: RpcCall, process_id: str, key: CommandKey) -> None:
    """As fast as the client reads."""
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
    """Answered when it has ended. One that another process of this machine started is found as well."""
    attached, process_id = call.attached(), _id(call, "processId")
    signal = call.param("signal", str, "") or "SIGTERM"
    if signal not in GRACES:
        raise Invalid("signal_invalid", f"{signal!r} can't be sent; {', '.join(GRACES)} can.")
    with call.connection.peer.waiting():
        return {"killed": await call.service.commands.kill(process_key(attached.key, process_id), GRACES[signal])}


@method("session.shell.executeUserRequested")
async def execute_user_requested(call: RpcCall) -> Any:
    """Answered when it has ended. All who are attached see it run; the model is not told."""
    attached, tool_call_id = call.attached(), random_id()
    key = requested_key(attached.key, tool_call_id, _id(call, "requestId"))
    command = _command(call)
    directory = await _directory(call, attached.key)
    await call.service.commands.start(key, command, *directory)
    asked = {"toolCallId": tool_call_id, "toolName": "bash", "arguments": {"command": command}}
    attached.hub.publish("tool.user_requested", asked)
    attached.hub.publish("tool.execution_start", asked)
    # A client that leaves is no reason for the others not to hear of its end.
    ending = call.service.commands.do(_until_ended(call, attached, tool_call_id, key))
    with call.connection.peer.waiting():
        return await asyncio.shield(ending)


async def _until_ended(call: RpcCall, attached: Attached, tool_call_id: str, key: CommandKey) -> dict[str, Any]:
    try:
        finished = await call.service.commands.finished(key)
    except CommandsError as error:
        raise Conflict("outcome_unknown", f"How the command ended can't be told: {error}") from error
    result = _result(tool_call_id, finished)
    told: dict[str, Any] = {"toolCallId": tool_call_id, "success": result["success"]}
    if result["success"]:
        told["result"] = {"content": result["output"], "detailedContent": result["output"]}
    else:
        told["error"] = {"message": result["error"], "code": "failure"}
    attached.hub.publish("tool.execution_complete", told)
    return result


def _result(tool_call_id: str, finished: ClientCommandResult) -> dict[str, Any]:
    outcome = finished.outcome
    success = outcome.reason == "exited" and outcome.exit_code == 0
    told: dict[str, Any] = {"toolCallId": tool_call_id, "success": success, "output": finished.output}
    if outcome.exit_code is not None:
        told["exitCode"] = outcome.exit_code
    if not success:
        told["error"] = finished.errors or _why(finished)
    return told


def _why(finished: ClientCommandResult) -> str:
    match finished.outcome.reason:
        case "exited":
            return f"It ended with exit code {finished.outcome.exit_code}."
        case "killed":
            return "It was killed."
        case "time":
            return "It ran for longer than a command may."
        case _:
            return finished.outcome.detail or "Nobody saw how it ended."


@method("session.shell.cancelUserRequested")
async def cancel_user_requested(call: RpcCall) -> Any:
    attached, request_id = call.attached(), _id(call, "requestId")
    commands, key = call.service.commands, attached.key
    try:
        running = await commands.running(key.owner, key.session)
    except CommandsError as error:
        raise Conflict("command_not_killed", f"The command could not be killed: {error}") from error
    found = [status.key for status in running if handle_of(status.key) == request_id]
    with call.connection.peer.waiting():
        ended = [await commands.kill(one) for one in found]
    return {"cancelled": any(ended)}


# What is asked for


def _command(call: RpcCall) -> str:
    given = call.text("command")
    try:
        given.encode()
        return checked_command(given)
    except UnicodeEncodeError:
        raise Invalid("command_invalid", "A command is made of characters.") from None
    except ToolFailure as error:
        raise Invalid("command_invalid", str(error)) from error


def _id(call: RpcCall, name: str) -> str:
    given = call.text(name)
    if len(given) > MAX_ID_CHARACTERS or not may_be_chosen(given):
        raise Invalid("id_invalid", f"{name} has 1 to {MAX_ID_CHARACTERS} characters: {CHOSEN_ID_RULE}.")
    return given


def _seconds(call: RpcCall) -> float:
    given = call.param("timeout", int, DEFAULT_TIMEOUT_MS)
    if given <= 0:
        raise Invalid("timeout_invalid", "A timeout is a number of milliseconds, and more than none.")
    return given / 1000


async def _directory(call: RpcCall, key: Key, given: str = "") -> tuple[str, WorkingDirectory]:
    """Where a command is to run, and what it may write to: the session's directory, for all that lies in it, or else
    the one that is named from there. It must exist."""
    state = await call.service.operations.state(key)
    root = WorkingDirectory.of(
        state.working_directory or str(call.service.settings.directory), state.directory_identity
    )
    try:
        found = await asyncio.to_thread(_found, root, given)
    except DirectoryRefused as error:
        raise Conflict(error.code, str(error)) from error
    except (OSError, RuntimeError, ValueError):
        found = None
    if found is None:
        raise Invalid("directory_not_found", f"The directory {given or root} does not exist. Name one that does.")
    if root.identity is not None and (not given or found.is_relative_to(root)):
        return str(found if given else root), root
    return str(found), WorkingDirectory.of(str(found), identity_of(str(found)))


def _found(root: WorkingDirectory, given: str) -> Path | None:
    """Where a name leads from the session's directory. What is not that directory any more leads nowhere."""
    if given and not os.path.isabs(given):
        with root.opened():
            pass
    wanted = Path(root, given)
    return wanted.resolve() if wanted.is_dir() else None
