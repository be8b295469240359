"""What it costs to run commands under a supervisor that outlives us: the time of a short one, over a plain subprocess
that nobody could find again; and memory and processor of a crowd of long ones that are waited for.
"""

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Sequence

from bench.memory import own_megabytes_of
from bench.place import Place
from bench.processor import cpu_seconds_of
from holdfast.commands.command import CommandKey, Limits, Spec
from holdfast.commands.commands import Commands
from holdfast.commands.execution import command_line
from holdfast.commands.processes import process_entry
from holdfast.commands.service import SupervisorSettings

LONGEST_SECONDS = 120.0
"""If we die, the commands do not stay for long."""

LOOK_SECONDS = 0.02

SHORT = Spec(command="true", directory="/")
LONG = Spec(command=f"exec sleep {LONGEST_SECONDS:.0f}", directory="/", limits=Limits(seconds=LONGEST_SECONDS))


async def measure(place: Place) -> dict[str, float]:
    root = place.folder / "commands"
    async with Commands(root, settings=SupervisorSettings(idle_seconds=2.0)) as commands:
        figures = {"command_foreground": await _foreground(commands, place.size.foreground_commands)}
        supervisor = int((root / "supervisor.lock").read_text())
        keys = [_key(f"background-{number}") for number in range(place.size.background_commands)]
        try:
            figures |= await _background(commands, keys, supervisor, quiet_seconds=place.size.quiet_seconds)
        finally:
            await asyncio.gather(*(commands.kill(status.key, 0) for status in await commands.listed()))
    _see_out(supervisor)
    return figures


async def _foreground(commands: Commands, count: int) -> float:
    """In turns, so that whatever else the machine does slows both. The first of each is not counted."""
    ours, plain = [], []
    for number in range(count + 1):
        started = time.perf_counter()
        subprocess.run(command_line(SHORT), check=True)  # noqa: ASYNC221 - nothing else is to happen meanwhile
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        await commands.start(_key(f"foreground-{number}"), SHORT)
        status = await commands.wait(_key(f"foreground-{number}"))
        ours.append(time.perf_counter() - started)
        assert status.outcome is not None
        assert status.outcome.exit_code == 0
    return (statistics.median(ours[1:]) - statistics.median(plain[1:])) * 1000


async def _background(
    commands: Commands, keys: Sequence[CommandKey], supervisor: int, *, quiet_seconds: float
) -> dict[str, float]:
    who = {"command": supervisor, "command_asker": os.getpid()}
    memory = {name: own_megabytes_of(pid) for name, pid in who.items()}
    await asyncio.gather(*(commands.start(key, LONG) for key in keys))
    waiting = [asyncio.create_task(commands.wait(key, LONGEST_SECONDS)) for key in keys]
    # An answer says that all that was asked before has been heard.
    assert len(await commands.listed()) == len(keys)
    figures = {
        f"{name}_memory": (after - before) / len(keys)
        for name, before in memory.items()
        if before is not None and (after := own_megabytes_of(who[name])) is not None
    }
    processor, started = {name: cpu_seconds_of(pid) for name, pid in who.items()}, time.perf_counter()
    await asyncio.sleep(quiet_seconds)
    took = time.perf_counter() - started
    figures |= {
        f"{name}_idle_cpu": (after - before) / took * 100
        for name, before in processor.items()
        if before is not None and (after := cpu_seconds_of(who[name])) is not None
    }
    assert not any(one.done() for one in waiting)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    return figures


def _see_out(supervisor: int) -> None:
    """Whoever removes the folder must not find it at work there."""
    while (found := process_entry(supervisor)) is not None and not found.has_ended:
        time.sleep(LOOK_SECONDS)


def _key(call: str) -> CommandKey:
    return CommandKey("bench", "session", call, 1)
