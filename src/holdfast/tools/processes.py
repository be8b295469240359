"""Programs that tools start and wait for, each in its own session and process group, and ended with everything it
started. Shell commands are not among them: those outlive the runtime.

Output comes through a pipe of this module and not of the event loop: the loop's pipes wait until no process has the
other end open, and a background child may keep it open for ever.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

GRACE_SECONDS = 0.5
"""Time between SIGTERM and SIGKILL. A stop waits a second for both."""

KILLED_SECONDS = 0.25
"""How long to wait after SIGKILL. An ended process stays in the group until its parent has reaped it, which can take a
while, and a process that hangs in the kernel stays for ever; neither can do anything more."""

CHUNK_BYTES = 65_536


class PipeReader:
    """The reading end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """Returns the available bytes as soon as there are some; empty at the end."""
        while True:
            try:
                return os.read(self._descriptor, CHUNK_BYTES)
            except BlockingIOError:
                await self._readable()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)


class Program:
    """A running program and the group of all processes that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: PipeReader) -> None:
        self._process = process
        self.output = output
        self.group = process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def exit_code(self) -> int:
        """Waits for the end and returns the exit code: 128 plus the signal's number if a signal ended it, as in
        shells."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> None:
        """Ends the program and its group: SIGTERM, a short wait, then SIGKILL."""
        self._signal(signal.SIGTERM)
        if not await self._gone_within(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            await self._gone_within(KILLED_SECONDS)

    def _signal(self, number: int) -> bool:
        """Signals the group. Returns whether it has members; while it has, its number is not reused."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return False  # Refused on macOS: the remaining members have ended and were not reaped yet.
        return True

    async def _gone_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = 0.002
        while not self.has_ended or self._signal(0):
            if loop.time() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True


@asynccontextmanager
async def started(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    keeps_open: Sequence[int] = (),
) -> AsyncIterator[Program]:
    """Starts a program with no input and one pipe for stdout and stderr. Leaving the context before it has ended kills
    it. Raises `OSError` if it can't be started."""
    reading, writing = os.pipe()
    try:
        try:
            starting = asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=environment,
                pass_fds=keeps_open,
                start_new_session=True,
            )
            program = await _begun(starting, PipeReader(reading))
        finally:
            os.close(writing)
        try:
            yield program
        finally:
            if not program.has_ended:
                # A second cancellation must not interrupt the kill.
                await asyncio.shield(program.end())
    finally:
        os.close(reading)


async def _begun(starting: Coroutine[Any, Any, asyncio.subprocess.Process], output: PipeReader) -> Program:
    """Waits for the start. The program may run before this coroutine learns of it: a cancellation in between must kill
    it too."""
    begun = asyncio.ensure_future(starting)
    try:
        await asyncio.wait([begun])
    except asyncio.CancelledError:
        await asyncio.wait([begun])
        if not begun.exception():
            await asyncio.shield(Program(begun.result(), output).end())
        raise
    return Program(begun.result(), output)
