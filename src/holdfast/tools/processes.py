"""Programs that tools start and wait for: each in a session and process group of its own, ended with everything that it
started. Commands are not among them: those outlive us.

What a program writes comes through a pipe of ours and not through the event loop's: those wait until nobody holds the
other end any more, and a child that was left in the background may hold it for ever.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

GRACE_SECONDS = 0.5
"""From the signal that asks a group to end to the one that it can't refuse. A stop waits a second for all of it."""

KILLED_SECONDS = 0.25
"""How long to wait for what was killed. What has ended counts until whoever inherited it has noticed, which can take a
while, and one that hangs in the kernel takes for ever; neither can do anything more."""

CHUNK_BYTES = 65_536


class PipeReader:
    """The end of a pipe that we read from."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """What there is, as soon as there is something; nothing at the end."""
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
    """A program that runs, and the group of all that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: PipeReader) -> None:
        self._process = process
        self.output = output
        self.group = process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def exit_code(self) -> int:
        """Wait for its end. One that a signal ended has 128 and the signal's number, as shells say."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> None:
        """End it and all of its group: ask, wait a moment, then kill."""
        self._signal(signal.SIGTERM)
        if not await self._gone_within(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            await self._gone_within(KILLED_SECONDS)

    def _signal(self, number: int) -> bool:
        """Whether anybody is left in the group. As long as there is, its number is not given to another."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            return False  # Refused, on macOS: those that are left have ended, and were not yet waited for.
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
    """Start a program: nothing to read, and all that it writes in one pipe, errors too. Whoever leaves before it has
    ended ends it. Raises `OSError` if it can't be started."""
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
                # A second cancellation must not leave it half ended.
                await asyncio.shield(program.end())
    finally:
        os.close(reading)


async def _begun(starting: Coroutine[Any, Any, asyncio.subprocess.Process], output: PipeReader) -> Program:
    """It may be at work before we hear that it has started: a stop that comes in between must find it too."""
    begun = asyncio.ensure_future(starting)
    try:
        await asyncio.wait([begun])
    except asyncio.CancelledError:
        await asyncio.wait([begun])
        if not begun.exception():
            await asyncio.shield(Program(begun.result(), output).end())
        raise
    return Program(begun.result(), output)
