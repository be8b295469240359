"""How the tests of the built-in tools call one: as the runtime does, with arguments as a model writes them."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.events.ids import SessionId, ToolCallId
from holdfast.events.request import PermissionAsk
from holdfast.tools.tool import Tool, ToolContext, ToolResult

RESULTS = {"c1": "0123456789", "empty": ""}


async def outputs(tool_call_id: str) -> str | None:
    return RESULTS.get(tool_call_id)


def context(
    directory: Path | None,
    *,
    report: Callable[[str], None] = lambda text: None,
    permitted: PermissionAsk | None = None,
) -> ToolContext:
    return ToolContext(
        session_id=SessionId("s"),
        tool_call_id=ToolCallId("c"),
        key="k",
        attempt=1,
        working_directory=directory,
        report=report,
        read_output=outputs,
        permitted=permitted,
    )


def asked(tool: Tool, directory: Path | None, **arguments: Any) -> PermissionAsk:
    """The permission that the tool requests."""
    found = tool.asks(tool.parse(json.dumps(arguments)), directory)
    assert found
    return found


async def use(tool: Tool, directory: Path | None, **arguments: Any) -> str:
    """The result as the model sees it."""
    result = await outcome(tool, directory, **arguments)
    return result.content


async def outcome(tool: Tool, directory: Path | None, **arguments: Any) -> ToolResult:
    parsed = tool.parse(json.dumps(arguments))
    given = await tool.run(parsed, context(directory, permitted=tool.asks(parsed, directory)))
    return given if isinstance(given, ToolResult) else ToolResult(content=given)


def programs(words: str) -> list[int]:
    """Children of this process, and theirs, whose command lines have these words."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    parents = {int(pid): int(parent) for pid, parent, *_ in lines}

    def is_ours(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or is_ours(parents[pid]))

    return [int(pid) for pid, _, *arguments in lines if words in " ".join(arguments) and is_ours(int(pid))]


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody waited for yet is not alive."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def open_files() -> int:
    """Descriptors of this process that are open."""
    where = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return len(os.listdir(where))
