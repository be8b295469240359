"""Commands of simulated machines: they run in virtual time, outlive the processes that started them, and end as their
text says (`run SECONDS CODE`). All processes of a machine look after the same ones, with the real desk and keeper."""

import asyncio
import functools
import operator
from pathlib import Path

from msgspec.structs import replace

from holdfast.commands.command import (
    CommandKey,
    CommandOutcome,
    CommandRecord,
    CommandStatus,
    KillReport,
    Reason,
    Spec,
    Stream,
)
from holdfast.commands.commands import AlreadyThere, Started
from holdfast.commands.errors import NoSuchCommand
from holdfast.commands.output import OutputChunk
from holdfast.tools.exec import exec_tool
from proof.simulation.world import World

WAITS_FROM_NOW = 1e12
"""When a command was requested, by a clock that no simulated machine has, so that no earlier wait counts."""

RUN = replace(exec_tool, asks=lambda arguments, directory: None)
"""The tool `exec`, which needs no permission here."""


class Running:
    """A command that was started, or whose key was taken so that it never will be."""

    def __init__(self, world: World, record: CommandRecord, seconds: float, exit_code: int) -> None:
        self._world = world
        self._record = record
        self._started_at = world.loop.time()
        self.exit_code = exit_code
        self.outcome: CommandOutcome | None = None
        self._ended = asyncio.Event()
        world.later(seconds, self.end, "exited", exit_code)

    def end(self, reason: Reason, exit_code: int | None) -> None:
        if self.outcome is None:
            self.outcome = CommandOutcome(reason=reason, exit_code=exit_code, at=self._world.loop.time())
            self._ended.set()

    def status(self) -> CommandStatus:
        return CommandStatus(
            record=self._record, state="running" if self.outcome is None else "ended", outcome=self.outcome
        )

    async def wait(self) -> None:
        await self._ended.wait()


class SimulatedCommands:
    """The commands of one machine, as far as the runtime asks for them."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self.node = node
        self.all: dict[CommandKey, Running] = {}
        self._removed: dict[CommandKey, Running] = {}

    def session_folder(self, owner: str, session: str) -> Path:
        return Path("/commands") / self.node / owner / session

    async def start(self, key: CommandKey, spec: Spec, *, start_before: float) -> Started | AlreadyThere:
        await asyncio.sleep(0.001)
        if found := self.all.get(key) or self._removed.get(key):
            return AlreadyThere(found.status())
        _, seconds, exit_code = spec.command.split()
        self._world.trace.add(self.node, f"starts {spec.command!r} of {key.session}, {key.tool_call}")
        made = self.all[key] = Running(self._world, self._record(key, spec.command), float(seconds), int(exit_code))
        return Started(made.status())

    def _record(self, key: CommandKey, command: str) -> CommandRecord:
        limits = Spec(command="", directory="").limits
        return CommandRecord(
            key=key, command=command, directory="", limits=limits, merged=False, at=WAITS_FROM_NOW, boot=""
        )

    async def adopt(self, key: CommandKey) -> CommandStatus:
        await asyncio.sleep(0.001)
        if removed := self._removed.get(key):
            return removed.status()
        if key not in self.all:
            taken = self.all[key] = Running(self._world, self._record(key, ""), 0.0, 0)
            taken.end("not_started", None)
        return self.all[key].status()

    async def status(self, key: CommandKey) -> CommandStatus | None:
        await asyncio.sleep(0.001)
        found = self.all.get(key)
        return found.status() if found else None

    def _known(self, key: CommandKey) -> Running:
        if key not in self.all:
            raise NoSuchCommand(f"no command was started under {key}")
        return self.all[key]

    async def wait(self, key: CommandKey, timeout: float | None = None) -> CommandStatus:
        found = self._known(key)
        try:
            async with asyncio.timeout(timeout):
                await found.wait()
        except TimeoutError:
            pass  # The command still runs.
        return found.status()

    async def wait_for_output(self, key: CommandKey, offset: int, timeout: float | None = None) -> CommandStatus:
        return await self.wait(key, timeout)

    async def size(self, key: CommandKey, stream: Stream = "both") -> int:
        return 0

    async def read(self, key: CommandKey, offset: int, length: int, stream: Stream = "both") -> OutputChunk:
        return OutputChunk(offset, b"")

    async def kill(self, key: CommandKey, grace_seconds: float = 5.0) -> KillReport:
        found = self._known(key)
        await asyncio.sleep(min(grace_seconds, self._world.chance.random()))
        found.end("killed", 137)
        return KillReport(status=found.status())

    async def forget(self, key: CommandKey) -> None:
        """Its key stays used."""
        if found := self.all.pop(key, None):
            self._removed[key] = found


def all_commands(machines: list[SimulatedCommands]) -> dict[CommandKey, Running]:
    return functools.reduce(operator.or_, (machine.all for machine in machines), {})
