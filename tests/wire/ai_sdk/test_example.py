"""The example in the repository, run as it says it is run."""

import asyncio
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.wire.ai_sdk.harness import Home, Model, Server, calls, patience, says
from tests.wire.copilot.test_node_client import NODE

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[3] / "examples" / "ai-sdk"


@pytest.fixture
def folder(packages: Path, tmp_path: Path) -> Path:
    """The example as somebody has it who installed it."""
    (tmp_path / "example").mkdir()
    for name in ("chat.ts", "package.json"):
        shutil.copy(EXAMPLE / name, tmp_path / "example")
    (tmp_path / "example" / "node_modules").symlink_to(packages / "node_modules")
    return tmp_path / "example"


class Terminal:
    """The example as a person sees it and types into it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.shown = ""

    async def until(self, words: str) -> None:
        assert self._process.stdout is not None
        async with patience():
            while words not in self.shown:
                more = await self._process.stdout.read(4096)
                assert more, self.shown
                self.shown += more.decode()

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self.shown = ""
        self._process.stdin.write(f"{line}\n".encode())


@asynccontextmanager
async def chatting(folder: Path, server: Server, name: str = "example") -> AsyncIterator[Terminal]:
    environ = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": server.token}
    process = await asyncio.create_subprocess_exec(
        *(NODE, "chat.ts", name), cwd=folder, env=environ, stdin=PIPE, stdout=PIPE
    )
    try:
        yield Terminal(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_example_talks_asks_and_shows_what_it_missed(folder: Path, own_home: Home, model: Model) -> None:
    model.on("Write it down", calls("create", path="notes.txt", file_text="Hi"), says("It is written."))
    model.on("Go on for long", says("One two three four."))
    async with own_home.serve() as server:
        async with chatting(folder, server) as terminal:
            await terminal.until("> ")
            terminal.type("Write it down")
            await terminal.until('create {"path":"notes.txt","file_text":"Hi"}\nallow it? [y/n] ')
            terminal.type("y")
            await terminal.until("[create is done]\nIt is written.\n> ")
            hold = model.hold("Go on for long", piece=2)
            terminal.type("Go on for long")
            await terminal.until("One")
        hold.release()
        async with chatting(folder, server) as terminal:
            await terminal.until("One two three four.\n> ")
    assert (own_home.work / "notes.txt").read_text() == "Hi"
