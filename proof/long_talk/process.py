"""Starts `proof.long_talk.child`, gives it commands, and kills it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from proof.long_talk.child import Setup

ROOT: Final = Path(__file__).parents[2]

PATIENCE_SECONDS: Final = 60.0
"""A command takes some milliseconds, or until the lease of a killed process is over."""
PATIENCE_WITH_DEFECT_SECONDS: Final = 15.0


class Died(Exception):
    """The process was killed before it replied."""


class Refused(Exception):
    """The process refused a command, with a stable code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Stuck(Exception):
    """The process does not reply."""


class Child:
    """One process. `kills_at_summary` kills it as soon as it has asked for a summary."""

    def __init__(self, process: asyncio.subprocess.Process, patience_seconds: float) -> None:
        self.kills_at_summary = False
        self.was_killed_at_summary = False
        self._process = process
        self._patience_seconds = patience_seconds
        self._number = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, setup: Setup, environ: Mapping[str, str]) -> "Child":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proof.long_talk.child", msgspec.json.encode(setup).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **environ},
            limit=1 << 24,
        )
        child = cls(process, PATIENCE_WITH_DEFECT_SECONDS if setup.defect else PATIENCE_SECONDS)
        await child._ready
        return child

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Give a command and wait for its reply."""
        return await self.reply(self.begin(command, **arguments))

    def begin(self, command: str, **arguments: Any) -> int:
        self._number += 1
        self._replies[self._number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        line = json.dumps({"number": self._number, "do": command, "with": arguments})
        self._process.stdin.write(line.encode() + b"\n")
        return self._number

    async def reply(self, number: int) -> Any:
        if self._reading.done() and not self._replies[number].done():
            raise Died
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await self._replies[number]
        except TimeoutError:
            raise Stuck("The process has not replied.") from None
        finally:
            del self._replies[number]

    async def kill(self) -> None:
        """End it at once."""
        self._kill()
        await self._reading
        await self._process.wait()

    def _kill(self) -> None:
        """Not by the method of the process: it may take the exit status away from the loop."""
        if not self._reading.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._take(json.loads(line))
        for reply in (*self._replies.values(), self._ready):
            if not reply.done():
                reply.set_exception(Died())
                reply.exception()  # Not every reply is still awaited.

    def _take(self, line: dict[str, Any]) -> None:
        if "ready" in line:
            self._ready.set_result(None)
        elif "summary" in line:
            if self.kills_at_summary:
                self.kills_at_summary, self.was_killed_at_summary = False, True
                self._kill()
        elif (reply := self._replies.get(line["reply"])) is not None and not reply.done():
            if "code" in line:
                reply.set_exception(Refused(line["code"], line["message"]))
                reply.exception()
            else:
                reply.set_result(line["value"])
