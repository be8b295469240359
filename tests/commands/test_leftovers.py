"""Processes that a command leaves behind are watched as long as they run, have a time limit, and can be killed."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.command import CommandStatus, Limits, ProcessInfo
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandRefused
from tests.commands.world import (
    PATIENCE_SECONDS,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    spec,
    started,
    told,
    until,
)

SILENT = "sleep 1000 > /dev/null 2>&1 &"
"""It holds none of the outputs."""

HOLDS = "sleep 1000 &"


def pids(processes: tuple[ProcessInfo, ...]) -> list[int]:
    """Their names change: one that was forked is soon another program."""
    return [one.pid for one in processes]


def all_dead(processes: tuple[ProcessInfo, ...]) -> bool:
    return not any(is_running(one.pid) for one in processes)


def set_ceiling(status: CommandStatus, seconds: float) -> None:
    """For the next supervisor: so no test depends on how fast the machine is."""
    file = Path(status.folder) / "asked.json"
    asked = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode(asked | {"limits": asked["limits"] | {"seconds": seconds}}))


async def is_forgotten_by(commands: Commands) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await commands.listed():
            pass


@pytest.mark.parametrize("leaving", [SILENT, HOLDS])
async def test_a_leftover_process_is_killed_at_the_time_limit_of_its_command(commands: Commands, leaving: str) -> None:
    key, end = await ran(commands, spec(f"{leaving} exit 3", limits=Limits(seconds=4)))
    assert (end.exit_code, len(end.left_behind)) == (3, 1)
    await until(lambda: all_dead(end.left_behind))
    await is_forgotten_by(commands)
    assert await outcome(commands, key) == end


@pytest.mark.parametrize("leaving", [SILENT, HOLDS])
async def test_the_ceiling_is_met_although_the_supervisor_died_in_between(
    commands: Commands, root: Path, leaving: str
) -> None:
    key, end = await ran(commands, spec(f"{leaving} exit 3"))
    assert (end.exit_code, len(end.left_behind)) == (3, 1)
    status = await commands.adopt(key)
    await kill_supervisor(root)
    set_ceiling(status, 0.001)
    await commands.listed()
    await until(lambda: all_dead(end.left_behind))
    await is_forgotten_by(commands)
    assert await outcome(commands, key) == end


@pytest.mark.parametrize("leaving", [SILENT, HOLDS])
async def test_a_kill_ends_it_and_then_the_command_can_be_forgotten(commands: Commands, leaving: str) -> None:
    key, end = await ran(commands, spec(f"{leaving} exit 3"))
    assert [status.key for status in await commands.listed()] == [key]
    with pytest.raises(CommandRefused):
        await commands.forget(key)
    report = await commands.kill(key, 5)
    assert (pids(report.killed), report.escaped, report.status.outcome) == (pids(end.left_behind), (), end)
    await commands.forget(key)
    assert await commands.listed() == []


@pytest.mark.parametrize("leaving", [SILENT, HOLDS])
async def test_a_kill_ends_it_after_the_death_of_the_supervisor(commands: Commands, root: Path, leaving: str) -> None:
    key, end = await ran(commands, spec(f"{leaving} exit 3"))
    await kill_supervisor(root)
    assert [status.key for status in await commands.listed()] == [key]
    report = await commands.kill(key, 5)
    assert (pids(report.killed), report.escaped, report.status.outcome) == (pids(end.left_behind), (), end)
    await commands.forget(key)


async def test_leftovers_of_a_lost_command_are_named_and_killed_at_its_time_limit(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    key = new_key()
    running = await started(commands, key, spec(f"{SILENT} echo $! > pid; echo up; sleep 1000", tmp_path))
    await told(commands, key, b"up")
    assert running.runner is not None
    left = int((tmp_path / "pid").read_text())
    await kill_supervisor(root)
    os.kill(running.runner.pid, signal.SIGKILL)
    set_ceiling(running, 0.001)
    end = await outcome(commands, key)
    assert (end.reason, left in [one.pid for one in end.left_behind]) == ("lost", True)
    await until(lambda: not is_running(left))
    await is_forgotten_by(commands)


async def test_a_process_started_by_a_leftover_is_watched_too(commands: Commands, tmp_path: Path) -> None:
    """The one that was left behind ends, and leaves another behind."""
    os.mkfifo(tmp_path / "go")
    script = f"(read x < go; {SILENT} echo $! > pid) > /dev/null 2>&1 & exit 0"
    key, end = await ran(commands, spec(script, tmp_path))
    assert len(end.left_behind) == 1
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    await until(lambda: all_dead(end.left_behind))
    assert [status.key for status in await commands.listed()] == [key]
    report = await commands.kill(key, 5)
    assert [one.pid for one in report.killed] == [int((tmp_path / "pid").read_text())]
    assert await commands.listed() == []
