"""`holdfast-copilot` as a separate process, with the parrot as its surface."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.wire.copilot.raw_client import SECONDS, RawClient

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "tests.wire.copilot.entry")


class Ended(NamedTuple):
    code: int
    out: bytes
    err: str


class Place:
    """A home and the processes in it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir()
        self.log = self.home / "logs" / "holdfast-copilot.log"
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        self.environ = {**os.environ, "PYTHONPATH": path, "COPILOT_HOME": str(self.home)}

    def executable(self) -> str:
        """The runtime as one executable file, which clients require."""
        path = self.work / "runtime"
        path.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
        path.chmod(0o755)
        return str(path)

    async def start(
        self,
        *words: str,
        stdin: int = DEVNULL,
        stdout: int = PIPE,
        environ: dict[str, str] | None = None,
    ) -> Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            stdin=stdin,
            stdout=stdout,
            stderr=PIPE,
            cwd=self.work,
            env={**self.environ, **(environ or {})},
        )

    async def run(self, *words: str, typed: bytes = b"", environ: dict[str, str] | None = None) -> Ended:
        """Run the process to its end."""
        child = await self.start(*words, stdin=PIPE, environ=environ)
        async with asyncio.timeout(SECONDS):
            out, err = await child.communicate(typed)
        assert child.returncode is not None
        return Ended(child.returncode, out, err.decode())

    @asynccontextmanager
    async def listening(self, *words: str, token: str | None = None) -> AsyncIterator["Listening"]:
        child = await self.start(*words, environ={} if token is None else {"COPILOT_CONNECTION_TOKEN": token})
        try:
            assert child.stdout is not None
            async with asyncio.timeout(SECONDS):
                line = (await child.stdout.readline()).decode()
            assert line.startswith("CLI server listening on port "), line
            yield Listening(child, int(line.removeprefix("CLI server listening on port ")))
        finally:
            await end(child)

    @asynccontextmanager
    async def over_stdio(self, *words: str) -> AsyncIterator["Stdio"]:
        child = await self.start("--headless", *words, "--stdio", stdin=PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield Stdio(child, RawClient(child.stdout, child.stdin))
        finally:
            await end(child)


class Listening(NamedTuple):
    child: Process
    port: int

    async def client(self, host: str = "127.0.0.1") -> RawClient:
        return await RawClient.tcp(self.port, host)


class Stdio(NamedTuple):
    child: Process
    client: RawClient


async def exit_code(child: Process) -> int:
    async with asyncio.timeout(SECONDS):
        return await child.wait()


async def end(child: Process) -> None:
    if child.returncode is None:
        child.send_signal(signal.SIGKILL)
    await child.wait()
