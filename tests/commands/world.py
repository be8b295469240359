"""A data directory with real supervisors and real commands in it, and what tests look at from outside."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from holdfast.commands.command import CommandKey, CommandOutcome, CommandStatus, Limits, Spec
from holdfast.commands.commands import AlreadyThere, Commands, Started
from holdfast.commands.service import SupervisorSettings

REPOSITORY = Path(__file__).parent.parent.parent

PATIENCE_SECONDS = 20.0

SETTINGS = SupervisorSettings(idle_seconds=5.0)

SESSION = f"session-{secrets.token_hex(8)}"
"""Another for each process of tests, so that no two of them ever use the same key."""

_numbers: Iterator[int] = count(1)


def new_key() -> CommandKey:
    return CommandKey("owner", SESSION, f"call-{next(_numbers)}", 1)


def spec(command: str, directory: str | Path = "/", *, merged: bool = False, limits: Limits | None = None) -> Spec:
    return Spec(command=command, directory=str(directory), merged=merged, limits=limits or Limits())


async def started(commands: Commands, key: CommandKey, what: Spec) -> CommandStatus:
    answer = await commands.start(key, what)
    assert isinstance(answer, Started), answer
    return answer.status


async def refused(commands: Commands, key: CommandKey, what: Spec) -> CommandStatus:
    answer = await commands.start(key, what)
    assert isinstance(answer, AlreadyThere), answer
    return answer.status


async def outcome(commands: Commands, key: CommandKey) -> CommandOutcome:
    status = await commands.wait(key, PATIENCE_SECONDS)
    assert status.outcome is not None, status
    return status.outcome


async def ran(commands: Commands, what: Spec) -> tuple[CommandKey, CommandOutcome]:
    key = new_key()
    await started(commands, key, what)
    return key, await outcome(commands, key)


async def everything(commands: Commands, key: CommandKey) -> bytes:
    return (await commands.read(key, 0, 1 << 30)).data


async def until(condition: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)


async def told(commands: Commands, key: CommandKey, line: bytes) -> None:
    """Wait until the command has written that line."""
    seen = b""
    async for chunk in commands.follow(key):
        seen += chunk.data
        if line in seen.splitlines():
            return
    raise AssertionError(f"it ended without saying {line!r}: {seen!r}")


def supervisor_pid(root: Path) -> int:
    return int((root / "supervisor.lock").read_text())


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def kill_supervisor(root: Path) -> None:
    pid = supervisor_pid(root)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_running(pid))
