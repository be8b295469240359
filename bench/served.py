"""Measured servers as processes of their own, on the core that is measured: their clients are on the models' core."""

import asyncio
import os
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from bench.place import Place
from bench.processor import cpu_seconds_of

ENDING_SECONDS = 30.0
"""It takes far less to end."""


class Served(msgspec.Struct, frozen=True):
    """A server that clients may connect to. Whoever shows no token where one is wanted is turned away."""

    pid: int
    url: str
    token: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def cpu_seconds(self) -> float | None:
        return cpu_seconds_of(self.pid)


@asynccontextmanager
async def application(
    command: Sequence[str], *, cwd: Path, environ: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """A program that serves on the socket whose number is its last argument. Who connects early waits there."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as bound:
        number = bound.fileno()
        child = await asyncio.create_subprocess_exec(
            *command, str(number), cwd=cwd, env=environ, stdin=DEVNULL, stdout=DEVNULL, pass_fds=(number,)
        )
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        yield Served(child.pid, url)
    finally:
        await end(child)


@asynccontextmanager
async def announced(
    command: Sequence[str], *, cwd: Path, environ: dict[str, str] | None = None
) -> AsyncIterator[tuple[Process, bytes]]:
    """A program that says in its first line where it is; with that line."""
    child = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=environ, stdin=DEVNULL, stdout=PIPE)
    try:
        assert child.stdout is not None
        yield child, await child.stdout.readline()
    finally:
        await end(child)


async def end(child: Process) -> None:
    """In peace."""
    if child.returncode is None:
        child.terminate()
    try:
        async with asyncio.timeout(ENDING_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        raise


def beside(place: Place) -> AbstractContextManager[None]:
    """What was started before stays where it is; what is measured must not share its core with who measures it."""
    return on_cores(place.model_core if place.core is not None else None)


def on_all_cores(place: Place) -> AbstractContextManager[None]:
    """What is started here may run wherever there is room, as several machines' processes do."""
    return on_cores(place.core, place.model_core)


@contextmanager
def on_cores(*cores: int | None) -> Iterator[None]:
    """What is started here stays there, and so does this process meanwhile. None: processes can't be pinned."""
    pinned = {core for core in cores if core is not None}
    if not pinned:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, pinned)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
