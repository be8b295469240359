"""`holdfast-copilot` as a process of its own: on the core that is measured, its clients on the models' core."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from bench.place import Place
from bench.processor import cpu_seconds_of

EXECUTABLE = str(Path(sys.executable).with_name("holdfast-copilot"))

_OPTIONS = ("--headless", "--no-auto-update", "--log-level", "info")
"""What clients add by themselves."""

ENDING_SECONDS = 30.0
"""It takes far less to end."""

_FOREIGN = re.compile(r"COPILOT_|GH_TOKEN$|GITHUB_TOKEN$")


class Listening(msgspec.Struct, frozen=True):
    """A runtime that clients may connect to."""

    pid: int
    port: int

    def cpu_seconds(self) -> float | None:
        return cpu_seconds_of(self.pid)


@asynccontextmanager
async def listening(place: Place, home: Path) -> AsyncIterator[Listening]:
    """A runtime on that home, ended in peace afterwards. Within it, this process is on the models' core."""
    child = await asyncio.create_subprocess_exec(
        EXECUTABLE, *_OPTIONS, cwd=home.parent, env=environ(place, home), stdin=DEVNULL, stdout=PIPE
    )
    try:
        assert child.stdout is not None
        said = await child.stdout.readline()
        announced = re.search(rb"listening on port (\d+)", said)
        if announced is None:
            raise RuntimeError(f"holdfast-copilot did not say where it listens, but {said!r}")
        with _beside(place):
            yield Listening(child.pid, int(announced[1]))
    finally:
        await _end(child)


async def _end(child: Process) -> None:
    if child.returncode is None:
        child.terminate()
    try:
        async with asyncio.timeout(ENDING_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        raise


def environ(place: Place, home: Path) -> dict[str, str]:
    """Nobody's own settings decide what is measured."""
    plain = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    return {**plain, "COPILOT_HOME": str(home), "COPILOT_API_URL": place.model_url}


@contextmanager
def _beside(place: Place) -> Iterator[None]:
    """What was started before stays where it is; what is measured must not share its core with who measures it."""
    if place.core is None or place.model_core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {place.model_core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
