"""`holdfast-copilot` as a process of its own: on the core that is measured, its clients on the models' core."""

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bench import served
from bench.place import Place
from bench.processor import cpu_seconds_of

EXECUTABLE = str(Path(sys.executable).with_name("holdfast-copilot"))

_OPTIONS = ("--headless", "--no-auto-update", "--log-level", "info")
"""What clients add by themselves."""

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
    command = (EXECUTABLE, *_OPTIONS)
    async with served.announced(command, cwd=home.parent, environ=environ(place, home)) as (child, said):
        found = re.search(rb"listening on port (\d+)", said)
        if found is None:
            raise RuntimeError(f"holdfast-copilot did not say where it listens, but {said!r}")
        with served.beside(place):
            yield Listening(child.pid, int(found[1]))


def environ(place: Place, home: Path) -> dict[str, str]:
    """Nobody's own settings decide what is measured."""
    plain = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    return {**plain, "COPILOT_HOME": str(home), "COPILOT_API_URL": place.model_url}
