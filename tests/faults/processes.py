"""Starts `tests.faults.child` and talks to it. Waiting is always for a line that the child writes, never for time."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.models.scripted import Script
from tests.faults.child import Setup
from tests.faults.world import QUICK, patience, place_of

ROOT = Path(__file__).parents[2]
SOURCES = Path(str(holdfast.__file__)).parents[1]
Line = dict[str, Any]


class Failed(Exception):
    """The child refused a command, with a stable code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Child:
    """A running child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: list[Line] = []
        self._changed = asyncio.Condition()
        self._number = 0
        self._reading = asyncio.create_task(self._read())

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Give a command and wait for what comes of it."""
        return await self.answer(self.begin(command, **arguments))

    def begin(self, command: str, **arguments: Any) -> int:
        """Give a command; `answer` waits for it."""
        self._number += 1
        assert self._process.stdin is not None
        line = json.dumps({"number": self._number, "do": command, "with": arguments})
        self._process.stdin.write(line.encode() + b"\n")
        return self._number

    async def answer(self, number: int) -> Any:
        line = await self.hear(lambda found: found.get("reply") == number)
        if "code" in line:
            raise Failed(line["code"], line["message"])
        return line["value"]

    async def hear(self, fits: Callable[[Line], bool]) -> Line:
        """Wait until the child has said a line like this."""
        async with patience(), self._changed:
            while True:
                for line in self._lines:
                    if fits(line):
                        return line
                assert not self._reading.done(), f"the child ended without saying it: {self._lines}"
                await self._changed.wait()

    async def comes_to(self, gate: str) -> None:
        await self.hear(lambda line: line.get("at") == gate)

    async def logs(self, words: str, *, times: int = 1) -> None:
        """Wait until it has logged these words, from now on, so many times."""
        known = sum(words in line for line in self.said("log"))
        await self.hear(lambda line: sum(words in found for found in self.said("log")) >= known + times)

    async def logged(self, words: str) -> None:
        await self.hear(lambda line: words in line.get("log", ""))

    def said(self, key: str) -> list[Any]:
        return [line[key] for line in self._lines if key in line]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once, without a chance to do anything."""
        self.signal(signal.SIGKILL)
        await self.gone()

    async def gone(self) -> int:
        async with patience():
            await self._reading
            return await self._process.wait()

    async def end(self) -> None:
        """Let it close its runtime and end by itself."""
        self.begin("end")
        assert await self.gone() == 0

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            async with self._changed:
                self._lines.append(json.loads(line))
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def child_on(
    database: Path,
    *,
    script: Script | None = None,
    holds: Sequence[str] = (),
    work: bool = True,
    most_bytes_in_a_file: int | None = None,
    before: Sequence[str] = (),
    user: int | None = None,
    ready: bool = True,
    deadly: str = "",
    **more: Any,
) -> AsyncIterator[Child]:
    """A child with a runtime on this file. `before` is put in front of its command line; it is killed at the end."""
    setup = Setup(
        journal=str(database.with_name("journal")),
        script=script,
        holds=list(holds),
        work=work,
        user=user,
        most_bytes_in_a_file=most_bytes_in_a_file,
        deadly=deadly,
    )
    command = (*before, sys.executable, "-m", "tests.faults.child", msgspec.json.encode(setup).decode())
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=_environment(database, more),
        limit=1 << 26,
    )
    child = Child(process)
    try:
        if ready:
            await child.hear(lambda line: "ready" in line)
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await child.gone()


def _environment(database: Path, more: dict[str, Any]) -> dict[str, str]:
    wanted = {**QUICK, **place_of(database), **more}
    variables = {f"HOLDFAST_{name.upper()}": str(value) for name, value in wanted.items()}
    return {**os.environ, **variables, "PYTHONPATH": f"{SOURCES}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}


def journal_of(database: Path) -> list[str]:
    """The effects of the tools of all children, in order: the call's key and a word."""
    journal = database.with_name("journal")
    return journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
